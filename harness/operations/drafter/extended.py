"""Operation of SPEC.md section 14: a batch whose queries get further tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.cases.batches.subclass import REQUEST_FIELDS
from attnproof.harness.cases.batches.tensors import batch_arrays
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Piece
from attnproof.harness.consumer.batch import (
    expected_tokens,
    metadata_violations,
    slot_violations,
)
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.relations import Joined, Relations
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.faults import faults_of
from attnproof.harness.operations.drafter.extended_cases import (
    engine_rows,
    extended_batches,
    extended_facts,
    extended_problem,
    extended_shapes,
    extended_unreal,
    lay_out_smaller,
)
from attnproof.harness.operations.shared.faults import metadata_fault
from attnproof.harness.operations.shared.metadata import (
    batch_of,
    diagnose_metadata,
    metadata_outputs,
    mirror_violations,
)
from attnproof.harness.operations.shared.params import Few, Params, Tokens
from attnproof.reference import extend_all_queries_by_N as reference

NAME = "extend_all_queries_by_N"
_KEPT = ("num_computed_tokens_cpu", "block_table_tensor", "encoder_seq_lens", "dcp_local_seq_lens")


class _Params(Params):
    more: Few
    """Further tokens of each row."""
    spare: Tokens = 0
    """Stale entries of arange and slots behind those that are needed."""


def _problem(case: Case) -> str:
    more = case.params["more"]
    fewer = any(query_len < more for query_len in batch_of(case).query_lens)
    return f"more: {more}, of fewer tokens" if fewer else extended_problem(case)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    batch, more = draw(extended_batches(extras=True))
    return Case(NAME, batch, {"more": more, "spare": draw(st.sampled_from((0, 0, 2)))})


def _boundaries() -> Iterator[tuple[str, Case]]:
    for name, batch, more in extended_shapes():
        yield name, Case(NAME, batch, {"more": more, "spare": 1})
    shares = make_batch([3, 2], [5, 0], 4, dcp_local_seq_lens=(4, 1), causal=False)
    yield "rank shares, nothing added", Case(NAME, shares, {"more": 0})


def _steps(batch: Batch) -> Iterator[Case]:
    whole = engine_rows(batch)
    yield Case(NAME, whole, {"more": min([1, *whole.query_lens])})


def _prepare(case: Case, pattern: int, device: str) -> Call:
    batch, stale = batch_of(case), STALE_PATTERNS[pattern]
    spare, step = case.params.get("spare", 0), (2 if batch.strided else 1,)
    slots = np.concatenate([batch_arrays(batch, pattern).slot_mapping, np.full(spare, stale)])
    counts = np.array([*range(batch.num_requests + 1), *[stale] * spare], dtype=np.int32)
    pieces = [
        Piece("arange", counts, False, step),
        Piece("new_slot_mapping", slots.astype(np.int64), False, step),
    ]
    metadata, arena = lay_out_smaller(case, pattern, device, pieces)
    arguments = {"arange": arena.tensors["arange"]}
    arguments["new_slot_mapping"] = arena.tensors["new_slot_mapping"]
    return Call(
        {"common_attn_metadata": metadata, "N": case.params["more"]} | arguments,
        arena=arena,
        facts=extended_facts(case, metadata),
    )


def _outputs(call: Call, result: Any) -> Outputs:
    return metadata_outputs(result, original=call.facts.metadata)


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    yield from mirror_violations(outputs)
    batch = call.facts.batch
    if outputs["num_actual_tokens"] != batch.num_tokens + batch.padded_tokens:
        yield Violation("num_actual_tokens", "is not the number of tokens")
    if outputs["logits_indices_padded"] is not None:
        yield Violation("logits_indices_padded", "are those of the smaller batch")


def _consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check the keys that each token of the extended batch sees, and where it is written."""
    expected = expected_tokens(call.facts.batch)
    yield from metadata_violations(expected, outputs)
    slots = outputs["slot_mapping"][: outputs["num_actual_tokens"]]
    yield from slot_violations(expected, slots, "slot_mapping")


def _grows(case: Case) -> bool:
    """True if the batch has tokens, and gets more."""
    more = case.params["more"]
    return bool(more and batch_of(case).num_tokens > more * case.num_requests)


extend_all_queries = Operation(
    name=NAME,
    section="14",
    summary="a batch whose queries all get further tokens",
    inputs=Inputs(
        params=_Params,
        problem=_problem,
        unreal=extended_unreal,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_steps,
        faults=faults_of(reference, _prepare)
        | {
            "arange that starts at 1": Fault("arange", lambda counts: counts + 1, cpu_only=True),
            "short slots": Fault(
                "new_slot_mapping",
                lambda slots: slots[:0],
                applies=lambda case: case.num_tokens > 0,
            ),
            "rank shares of longer sequences": metadata_fault(
                "common_attn_metadata",
                "dcp_local_seq_lens",
                lambda md: {"dcp_local_seq_lens": md.seq_lens.clone()},
                _grows,
            ),
        },
    ),
    call=FunctionCall(prepare=_prepare, outputs=_outputs),
    contract=Contract(
        relations=Relations(
            joined={
                "query_start_loc": Joined.OFFSETS,
                "query_start_loc_cpu": Joined.OFFSETS,
                "seq_lens": Joined.ENTRIES,
                "seq_lens_cpu": Joined.ENTRIES,
                "num_computed_tokens_cpu": Joined.ENTRIES,
            },
            blocks=frozenset({"block_table_tensor"}),
            slots=frozenset({"slot_mapping"}),
        ),
        invariants=_invariants,
        consume=_consumed,
        diagnose=diagnose_metadata,
        may_alias=frozenset((*_KEPT, "slot_mapping", *REQUEST_FIELDS)),
    ),
    bench=Bench(cases=lambda batch: _steps(batch) if batch.num_requests == 64 else ()),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (extend_all_queries,)
