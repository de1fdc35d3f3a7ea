"""Operation of SPEC.md section 6 that cuts requests into the convolution's programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.model.call import MISSING, Call, Facts, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.faults import wrong_type
from attnproof.harness.operations.shared.params import Lengths, Params, size_problem

NAME = "compute_causal_conv1d_metadata"
KEYS = ("nums", "tot", "mlist", "mlist_len", "offsetlist", "batch_ptr", "token_chunk_offset_ptr")
_POINTERS = ("batch_ptr", "token_chunk_offset_ptr")
_HELD = {key: f"{key} in nums_dict" for key in _POINTERS}
"""Output field of each pointer, True if `nums_dict` holds the returned tensor."""
_BLOCK = 8
"""Tokens per program."""


class _Params(Params):
    query_lens: Lengths
    wide: bool
    strided: bool


def _problem(case: Case) -> str:
    return size_problem("query_lens", sum(case.params["query_lens"]))


def _case(query_lens: list[int], wide: bool = False, strided: bool = False) -> Case:
    """Return a case; `wide` selects int64 offsets."""
    return Case(NAME, None, {"query_lens": query_lens, "wide": wide, "strided": strided})


_LENGTH = st.sampled_from((0, 1, 7, 8, 9, 16, 17)) | st.integers(0, 70)
_LENGTHS = st.lists(_LENGTH, max_size=7)
_RARELY = st.integers(0, 5).map(lambda draw: draw == 5)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    query_lens = draw(_LENGTHS)
    if draw(_RARELY):
        query_lens.append(draw(st.integers(8000, 9000)))
    return _case(query_lens, draw(_RARELY), draw(_RARELY))


def _boundaries() -> Iterator[tuple[str, Case]]:
    yield "SPEC example", _case([5, 16, 0, 9])
    yield "no requests", _case([])
    yield "only requests without tokens", _case([0, 0])
    yield "requests without tokens at both ends", _case([0, 0, 9, 0, 1, 0])
    for query_len in (1, 7, 8, 9, 15, 16, 17):
        yield f"{query_len} tokens", _case([query_len])
    for programs in (1023, 1024, 1025):
        yield f"{programs} programs (K22)", _case([8 * programs - 3, 0])
    yield "a request of more programs than 16 bits count (K22)", _case([3, 8 * 2**16 + 1, 9])
    yield "many short requests (K22)", _case([(5 * row) % 12 for row in range(5000)])
    yield "int64", _case([5, 16, 0, 9], wide=True)
    yield "strided", _case([5, 16, 0, 9], strided=True)
    yield "strided int64, many programs", _case([9000, 0, 300], wide=True, strided=True)


def _steps(batch: Batch) -> Iterator[Case]:
    yield _case(list(batch.query_lens), batch.dtype == "int64", batch.strided)


@dataclass(frozen=True, kw_only=True)
class _OffsetFacts(Facts):
    offsets: np.ndarray
    """(R+1,) query_start_loc_p on the CPU."""


def _prepare(case: Case, pattern: int, device: str) -> Call:
    params = case.params
    query_lens = np.array(params["query_lens"], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(query_lens)])
    offsets = offsets.astype(np.int64 if params["wide"] else np.int32)
    piece = Piece("query_start_loc_p", offsets, False, (2 if params["strided"] else 1,))
    arena = Arena([piece], STALE_PATTERNS[pattern], device)
    given = arena.tensors["query_start_loc_p"]
    return Call({"query_start_loc_p": given}, arena=arena, facts=_OffsetFacts(offsets=offsets))


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
    offsets = call.facts.offsets
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
    wrong, lengths = (expected != got).cpu().numpy(), np.diff(call.facts.offsets)
    programs = int((-(-lengths // _BLOCK)).sum())
    if name in _POINTERS and not wrong[:programs].any():
        return "pointer not -1 behind the programs"
    if name == "nums" and (lengths[wrong] % _BLOCK != 0).all() and (got <= expected).all():
        return "last, partial block of a request lost"
    if name == "nums" and (got >= expected).all():
        return "a program without a token"
    return ""


compute_causal_conv1d_metadata = Operation(
    name=NAME,
    section="6",
    summary="request and block of 8 tokens for each program of the convolution",
    inputs=Inputs(
        params=_Params,
        problem=_problem,
        has_batch=False,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_steps,
        any_slots=True,
        faults={
            "offsets of another type": wrong_type("query_start_loc_p"),
            "float offsets": Fault("query_start_loc_p", lambda offsets: offsets.float()),
            "2-D offsets": Fault("query_start_loc_p", lambda offsets: offsets[None]),
            "no offsets": Fault("query_start_loc_p", lambda offsets: offsets[:0]),
            "offsets that do not start at 0": Fault(
                "query_start_loc_p", lambda offsets: offsets + 1
            ),
            "offsets that fall": Fault(
                "query_start_loc_p", lambda offsets: torch.cat([offsets, offsets[:1] - 1])
            ),
        },
    ),
    call=FunctionCall(prepare=_prepare, outputs=_outputs),
    contract=Contract(invariants=_invariants, may_sync=lambda _: True, diagnose=_diagnose),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (compute_causal_conv1d_metadata,)
