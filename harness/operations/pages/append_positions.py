"""Operation of SPEC.md section 15: request and position of each appended token.

Bug classes: positions counted from the wrong end, tail entries that name request 0 (K17),
a request without tokens that shifts the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.cases.batches.tensors import batch_arrays
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.consumer.batch import expected_tokens, int64_array
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.relations import Joined, Relations
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.faults import wrong_type, wrong_value
from attnproof.harness.operations.shared.metadata import BatchFacts, batch_of
from attnproof.harness.operations.shared.params import Params, Tokens

NAME = "get_batch_indices_positions"
_FIELDS = ("batch_indices", "positions")


class _Params(Params):
    spare: Tokens


def _case(batch: Batch, spare: int = 0) -> Case:
    """Return a case; `spare` is the number of entries behind the last token."""
    return Case(NAME, batch, {"spare": spare})


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    return _case(draw(batches()), draw(st.sampled_from((0, 0, 1, 5))))


def _boundaries() -> Iterator[tuple[str, Case]]:
    example = make_batch([1, 2, 3], [4, 0, 1], 4)
    yield "example", _case(example, 1)
    yield "requests without tokens", _case(make_batch([0, 2, 0, 0, 1, 0], [3, 0, 0, 5, 7, 2], 4), 3)
    yield "no requests", _case(make_batch([], [], 4))
    yield "no requests, padded", _case(make_batch([], [], 4), 4)
    yield "only padded rows", _case(make_batch([], [], 4, padded_requests=3), 3)
    for tokens in (511, 512, 513):
        yield f"{tokens} tokens (K19)", _case(make_batch([tokens - 3, 3], [0, 9], 16), 2)
    yield "256 requests", _case(make_batch([1] * 256, [row % 9 for row in range(256)], 4), 1)
    lengths = [(5 * row) % 4 for row in range(1200)]
    yield (
        "many short requests over several tiles",
        _case(make_batch(lengths, [row % 7 for row in range(1200)], 4), 9),
    )
    yield "long sequences", _case(make_batch([3, 1], [2**20 + 254, 2**21], 256))
    yield "strided int64", _case(make_batch([4, 3], [1, 5], 4, strided=True, dtype="int64"), 2)
    yield "int64 offsets", _case(make_batch([4, 3], [1, 5], 4, dtype="int64 offsets"))


def _prepare(case: Case, pattern: int, device: str) -> Call:
    batch = batch_of(case)
    made, step = batch_arrays(batch), (2 if batch.strided else 1,)
    pieces = [
        Piece("append_indptr", made.query_start_loc, False, step),
        Piece("seq_lens", made.seq_lens, False, step),
    ]
    arena = Arena(pieces, STALE_PATTERNS[pattern], device)
    nnz = int(made.query_start_loc[-1]) + case.params["spare"]
    args = {name: arena.tensors[name] for name in ("append_indptr", "seq_lens")}
    return Call(args | {"nnz": nnz}, arena=arena, facts=BatchFacts(batch=batch))


def _outputs(_call: Call, result: Any) -> Outputs:
    return dict(zip(_FIELDS, result, strict=True))


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Compare both results with the request and position of each token of the batch."""
    expected = expected_tokens(call.facts.batch)
    tail = np.zeros(call["nnz"] - len(expected.requests), dtype=np.int64)
    found = (int64_array(outputs[name]) for name in _FIELDS)
    right = (np.append(expected.requests, tail - 1), np.append(expected.positions, tail))
    for name, values, wanted in zip(_FIELDS, found, right, strict=True):
        if not np.array_equal(values, wanted):
            yield Violation(name, "do not name each token's request and position")


def _has_tokens(case: Case) -> bool:
    return case.num_tokens > 0


def _falling(offsets: torch.Tensor) -> torch.Tensor:
    return torch.cat([offsets[:-1], offsets[:1] - 1])


get_batch_indices_positions = Operation(
    name=NAME,
    section="15",
    summary="request and position of each token appended to the cache",
    inputs=Inputs(
        params=_Params,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=lambda batch: [_case(batch, batch.num_tokens % 7)],
        faults={
            "negative number of entries": wrong_value("nnz", -1),
            "number of another type": wrong_type("nnz"),
            "fewer entries than tokens": Fault(
                "nnz", lambda _: 0, applies=_has_tokens, cpu_only=True
            ),
            "offsets of another type": wrong_type("append_indptr"),
            "no offsets": Fault("append_indptr", lambda offsets: offsets[:0]),
            "float offsets": Fault("append_indptr", torch.Tensor.float),
            "2-D lengths": Fault("seq_lens", lambda lengths: lengths[None]),
            "one length missing": Fault(
                "seq_lens", lambda lengths: lengths[:-1], applies=_has_tokens
            ),
            "offsets that do not start at 0": Fault(
                "append_indptr", lambda offsets: offsets + 1, cpu_only=True
            ),
            "offsets that fall": Fault(
                "append_indptr", _falling, applies=_has_tokens, cpu_only=True
            ),
            "sequence shorter than what is appended": Fault(
                "seq_lens", lambda lengths: -1 - lengths, applies=_has_tokens, cpu_only=True
            ),
        },
    ),
    call=FunctionCall(prepare=_prepare, outputs=_outputs),
    contract=Contract(
        relations=Relations(
            joined={"positions": Joined.TOKENS, "batch_indices": Joined.ROW_INDICES},
            alone={"spare": 0},
        ),
        invariants=_invariants,
    ),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (get_batch_indices_positions,)
