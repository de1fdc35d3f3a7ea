"""Operation of SPEC.md section 6 that cuts requests into the convolution's programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.cases.batches.tensors import batch_arrays
from attnproof.harness.model.call import MISSING, Call, Outputs
from attnproof.harness.model.case import Batch
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.derive import Example, derive_built_in
from attnproof.reference import compute_causal_conv1d_metadata as reference

KEYS = ("nums", "tot", "mlist", "mlist_len", "offsetlist", "batch_ptr", "token_chunk_offset_ptr")
_POINTERS = ("batch_ptr", "token_chunk_offset_ptr")
_HELD = {key: f"{key} in nums_dict" for key in _POINTERS}
"""Output field of each pointer, True if `nums_dict` holds the returned tensor."""
_BLOCK = 8
"""Tokens per program."""


def _examples() -> Iterator[Example]:
    def of(query_lens: list[int], **fields: Any) -> Batch:
        return make_batch(query_lens, [0] * len(query_lens), 16, **fields)

    yield "SPEC example", of([5, 16, 0, 9]), {}
    yield "only requests without tokens", of([0, 0]), {}
    yield "requests without tokens at both ends", of([0, 0, 9, 0, 1, 0]), {}
    for query_len in (1, 7, 8, 9, 15, 16, 17):
        yield f"{query_len} tokens", of([query_len]), {}
    for programs in (1023, 1024, 1025):
        yield f"{programs} programs (K22)", of([8 * programs - 3, 0]), {}
    beyond = of([3, 8 * 2**16 + 1, 9])
    yield "a request of more programs than 16 bits count (K22)", beyond, {}
    yield "many short requests (K22)", of([(5 * row) % 12 for row in range(5000)]), {}
    wide = of([9000, 0, 300], dtype="int64", strided=True)
    yield "strided int64, many programs", wide, {}


def _offsets(call: Call) -> np.ndarray:
    """Return (R+1,) query_start_loc_p."""
    return batch_arrays(call.facts.batch).query_start_loc


def _outputs(_call: Call, result: Any) -> Outputs:
    nums_dict, batch_ptr, token_chunk_offset_ptr = result
    programs = nums_dict[_BLOCK]
    outputs: Outputs = {"block sizes": list(nums_dict), "keys": sorted(programs)}
    outputs |= {key: programs.get(key, MISSING) for key in KEYS}
    returned = dict(zip(_POINTERS, (batch_ptr, token_chunk_offset_ptr), strict=True))
    outputs |= {field: programs.get(key) is returned[key] for key, field in _HELD.items()}
    return outputs | returned


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check that each token is in exactly one program, and that pointers and lists agree."""
    offsets = _offsets(call)
    owners, numbers = outputs["mlist"].numpy(), outputs["offsetlist"].numpy()
    total = len(owners)
    if not total == outputs["mlist_len"] == outputs["tot"] == int(outputs["nums"].sum()):
        yield Violation("tot", "is not the number of programs")
    if sorted(outputs["keys"]) != sorted(KEYS):
        yield Violation("keys", "are not the seven published ones")
    starts = offsets[owners] + _BLOCK * numbers.astype(np.int64)
    covered = np.zeros(offsets[-1] + 1, dtype=np.int64)
    if (numbers < 0).any() or (starts >= offsets[owners + 1]).any():
        yield Violation("offsetlist", "has a program without a token")
        return
    np.add.at(covered, starts, 1)
    np.add.at(covered, np.minimum(starts + _BLOCK, offsets[owners + 1]), -1)
    if (np.cumsum(covered)[:-1] != 1).any():
        yield Violation("offsetlist", "leaves out a token, or takes one twice")
    for key, values in zip(_POINTERS, (owners, numbers), strict=True):
        pointer = outputs[key].cpu().numpy()
        if len(pointer) != 2 * max(1024, total):
            yield Violation(key, "is not twice as long as max(1024, programs)")
        if (pointer[total:] != -1).any() or pointer[:total].tolist() != values.tolist():
            yield Violation(key, "is not the list of programs with -1 behind it")


def _diagnose(call: Call, place: Place, expected: Any, got: Any) -> str:
    name = place.field
    if name in _HELD.values():
        return "a pointer in nums_dict that is not the one returned"
    if type(expected) is not type(got) or not isinstance(expected, torch.Tensor):
        return ""
    if expected.dtype != got.dtype or expected.ndim != got.ndim:
        return ""
    if expected.shape != got.shape:
        pointer = "pointers not sized for the programs" if name in _POINTERS else ""
        return pointer or "programs lost" if len(got) < len(expected) else pointer
    wrong, lengths = (expected != got).cpu().numpy(), np.diff(_offsets(call))
    programs = int((-(-lengths // _BLOCK)).sum())
    if name in _POINTERS and not wrong[:programs].any():
        return "pointer not -1 behind the programs"
    if name == "nums" and (lengths[wrong] % _BLOCK != 0).all() and (got <= expected).all():
        return "last, partial block of a request lost"
    if name == "nums" and (got >= expected).all():
        return "a program without a token"
    return ""


compute_causal_conv1d_metadata = derive_built_in(
    reference,
    section="6",
    summary="request and block of 8 tokens for each program of the convolution",
    examples=_examples,
    any_slots=True,
    outputs=_outputs,
    faults={  # of any device: its offsets are read
        "offsets that do not start at 0": Fault("query_start_loc_p", lambda offsets: offsets + 1),
        "offsets that fall": Fault(
            "query_start_loc_p", lambda offsets: torch.cat([offsets, offsets[:1] - 1])
        ),
        "no offsets": Fault("query_start_loc_p", lambda offsets: offsets[:0]),
    },
    invariants=_invariants,
    may_sync=lambda _: True,
    diagnose=_diagnose,
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (compute_causal_conv1d_metadata,)
