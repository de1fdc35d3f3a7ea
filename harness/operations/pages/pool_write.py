"""Operation of SPEC.md section 15: a step's slots are written to the pool of requests' slots.

Bug classes: the new tokens' slots at position 0, another request's slots, a write behind the
sequence or into the row of no request, a tile that is left out (K19).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import HIGHEST_BLOCK, batches, make_batch
from attnproof.harness.cases.batches.tensors import batch_arrays, table_piece
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.consumer.batch import expected_tokens, int64_array
from attnproof.harness.consumer.page_table import of_slots, page_table_violations
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.faults import faults_of
from attnproof.harness.operations.derived.pool import needs_wide_pool, pool_problem, token_pool
from attnproof.harness.operations.shared.metadata import BatchFacts, batch_of
from attnproof.harness.operations.shared.params import Params
from attnproof.reference import write_req_to_token_pool as reference

NAME = "write_req_to_token_pool"
_TABLE, _NEW, _PREFIXES = "req_to_token", "out_cache_loc", "prefix_tensors"


def _case(batch: Batch) -> Case:
    return Case(NAME, batch)


def _boundaries() -> Iterator[tuple[str, Case]]:
    mixed = make_batch([1, 2, 0, 3], [4, 0, 3, 1], 4, order="descending")
    yield "mixed batch", _case(mixed)
    yield "no prefix at all", _case(make_batch([3, 1], [0, 0], 4))
    yield "prefixes alone", _case(make_batch([0, 0], [8, 1], 4))
    yield "no requests", _case(make_batch([], [], 4))
    yield "padded rows", _case(make_batch([1, 3], [7, 0], 4, padded_requests=2))
    for tokens in (1023, 1024, 1025, 2500):
        yield f"{tokens} new tokens (K19)", _case(make_batch([tokens, 1], [3, 2], 16))
        yield f"prefix of {tokens} tokens (K19)", _case(make_batch([2, 1], [tokens, 2], 16))
    for rows in (128, 129, 260):
        lengths = [1 + row % 3 for row in range(rows)]
        batch = make_batch(lengths, [row % 7 for row in range(rows)], 4, order="shuffled")
        yield f"{rows} requests (K19)", _case(batch)
    yield "highest page ids (K15)", _case(make_batch([3, 2], [15, 1], 16, first=HIGHEST_BLOCK - 4))
    yield "highest slots of int32", _case(make_batch([3, 2], [1, 0], 1, first=2**31 - 6))
    yield "strided int64", _case(make_batch([4, 3], [1, 5], 4, strided=True, dtype="int64"))
    yield "shared prefix", _case(make_batch([2, 2], [8, 8], 4, shared=True))


def _steps(batch: Batch) -> Iterator[Case]:
    if not pool_problem(_case(batch)):
        yield _case(batch)


def _prepare(case: Case, pattern: int, device: str) -> Call:
    batch = batch_of(case)
    arrays, pool = batch_arrays(batch, pattern), token_pool(batch, pattern, distinct=True)
    step, tokens = (2 if batch.strided else 1,), int(arrays.query_start_loc[-1])
    dtype = arrays.seq_lens.dtype
    vectors = {
        "req_pool_indices": pool.rows,
        "pre_lens": arrays.num_computed_tokens,
        "seq_lens": arrays.seq_lens,
        "extend_lens": np.diff(arrays.query_start_loc),
    }
    pieces = [Piece(name, v.astype(dtype), False, step) for name, v in vectors.items()]
    rows = zip(pool.rows.tolist(), arrays.num_computed_tokens.tolist(), strict=True)
    prefixes = [
        Piece(
            f"{_PREFIXES}[{r}]",
            pool.table[row, :length].astype(np.int64),
            False,
            step if r % 2 else (1,),  # some have gaps and some have not
        )
        for r, (row, length) in enumerate(rows)
    ]
    pieces += [
        *prefixes,
        Piece(_NEW, arrays.slot_mapping[:tokens], False, step),
        table_piece(_TABLE, np.full_like(pool.table, STALE_PATTERNS[pattern]), step[0]),
    ]
    arena = Arena(pieces, STALE_PATTERNS[pattern], device)
    tensors: dict[str, Any] = arena.tensors | {
        _PREFIXES: [arena.tensors[piece.name] for piece in prefixes]
    }
    names = (_TABLE, "req_pool_indices", _PREFIXES, "pre_lens", "seq_lens", "extend_lens", _NEW)
    return Call(
        {name: tensors[name] for name in names},
        arena=arena,
        written=frozenset({_TABLE}),
        facts=BatchFacts(batch=batch, block_size=batch.block_size),
    )


def _outputs(call: Call, result: Any) -> Outputs:
    return {_TABLE: call[_TABLE], "result": result}


def _consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check that each query sees its request's slots in its row of the pool."""
    expected = expected_tokens(call.facts.batch)
    lengths = expected.computed + np.diff(expected.starts)
    table = int64_array(outputs[_TABLE])[int64_array(call["req_pool_indices"])]
    slots = table[np.arange(table.shape[1]) < lengths[:, None]]
    pages = of_slots(np.append(0, np.cumsum(lengths)), slots)
    yield from page_table_violations(expected, pages, (_TABLE,) * 3)


def _has_both(case: Case) -> bool:
    """True if the first request has a prefix and new tokens."""
    batch = batch_of(case)
    first = [*zip(batch.query_lens, batch.computed_lens, strict=True)][:1]
    return bool(first and all(first[0]))


def _is_narrow(case: Case) -> bool:
    """True if there are new tokens, and an int32 table."""
    return _has_both(case) and token_pool(batch_of(case), 0).table.dtype == np.int32


def _values(parameter: str, change: Any, field: str = "") -> Fault:
    """Return a fault of a tensor's values, which a check can detect on the CPU only."""
    return Fault(parameter, change, field, applies=_has_both, cpu_only=True)


def _without_last(prefixes: list[torch.Tensor]) -> list[torch.Tensor]:
    return [prefixes[0][:-1], *prefixes[1:]]


write_req_to_token_pool = Operation(
    name=NAME,
    section="15",
    summary="a step's slots written to the pool of requests' slots",
    inputs=Inputs(
        params=Params,
        whole_contexts=True,
        problem=pool_problem,
        unreal=needs_wide_pool,
        cases=lambda: st.builds(_case, batches()),
        boundaries=_boundaries,
        from_batch=_steps,
        faults=faults_of(reference, _prepare)
        | {
            "one prefix missing": Fault(_PREFIXES, lambda v: v[:-1], applies=_has_both),
            "int32 prefix": Fault(_PREFIXES, lambda v: [v[0].int(), *v[1:]], applies=_has_both),
            "short prefix": _values(_PREFIXES, _without_last),
            "too few slots": _values(_NEW, lambda slots: slots[:-1]),
            "slots too large for the table": Fault(
                _NEW, lambda slots: slots + 2**31, applies=_is_narrow, cpu_only=True
            ),
            "rows behind the pool": _values("req_pool_indices", lambda rows: rows + 2**20),
            "a row given twice": Fault(
                "req_pool_indices",
                lambda rows: torch.full_like(rows, 1),
                applies=lambda case: _has_both(case) and case.num_requests > 1,
                cpu_only=True,
            ),
            "sequence shorter than its prefix": _values("seq_lens", lambda lengths: lengths * 0),
            "sequence longer than a row": _values("seq_lens", lambda lengths: lengths + 2**24),
            "extended lengths that disagree": _values("extend_lens", lambda lengths: lengths + 1),
        },
    ),
    call=FunctionCall(prepare=_prepare, outputs=_outputs),
    contract=Contract(consume=_consumed, may_alias=frozenset({_TABLE})),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (write_req_to_token_pool,)
