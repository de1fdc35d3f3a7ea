"""Operations of SPEC.md section 14: the batch of a drafter after the target model's step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from attnproof import reference
from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.cases.batches.subclass import REQUEST_FIELDS, TOKEN_FIELDS
from attnproof.harness.cases.batches.tensors import lay_out
from attnproof.harness.cases.memory.arena import Piece
from attnproof.harness.consumer.batch import int64_array
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.relations import Joined, Relations
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.faults import faults_of
from attnproof.harness.operations.drafter.diagnosis import diagnose_kept
from attnproof.harness.operations.drafter.drafts import (
    DraftParams,
    draft_params,
    draft_problem,
    draft_unreal,
    drafted,
    drafts_of,
    kept_tokens,
    rejected_of,
    without_shares,
)
from attnproof.harness.operations.drafter.outputs import (
    child_consumed,
    child_fields,
    child_violations,
)
from attnproof.harness.operations.drafter.prepared_faults import DROP_FAULTS, PADDED_FAULTS
from attnproof.harness.operations.shared.metadata import BatchFacts, batch_of, prepare_metadata

DROP, PADDED = "prepare_inputs", "prepare_inputs_padded"
INDICES, TO_SAMPLE, REJECTED = "token_indices", "token_indices_to_sample", "num_rejected_tokens"
_METADATA = "common_attn_metadata"
_KEPT_ROWS = ("num_computed_tokens_cpu", "block_table_tensor", "encoder_seq_lens")
_VIEWS = frozenset(
    (
        *("query_start_loc", "query_start_loc_cpu", "seq_lens", "seq_lens_cpu", "slot_mapping"),
        *(*_KEPT_ROWS, "dcp_local_seq_lens", *REQUEST_FIELDS, *TOKEN_FIELDS),
    )
)


@dataclass(frozen=True, kw_only=True)
class _DraftFacts(BatchFacts):
    rejected: np.ndarray
    """(R,) rejected tokens of each row."""


@dataclass
class SpecDecodeStep:
    """Stand-in for a step's speculative-decoding metadata."""

    cu_num_draft_tokens: torch.Tensor


def _drop_problem(case: Case) -> str:
    problem = draft_problem(case)
    if problem or batch_of(case).dcp_local_seq_lens is None:
        return problem
    shares = "batch.dcp_local_seq_lens: a sequence with rank shares cannot lose a token"
    return shares if rejected_of(case).any() else ""


def _case(name: str, batch: Batch, drafts: list[int], sampled: list[int]) -> Case:
    return Case(name, batch, draft_params(drafts, sampled))


def _drop_case(drafted_batch: tuple[Batch, list[int], list[int]]) -> Case:
    batch, drafts, sampled = drafted_batch
    case = _case(DROP, batch, drafts, sampled)
    return _case(DROP, without_shares(batch), drafts, sampled) if _drop_problem(case) else case


def _drop_cases() -> st.SearchStrategy[Case]:
    return drafted().map(_drop_case)


def _padded_cases() -> st.SearchStrategy[Case]:
    return drafted().map(lambda drafted_batch: _case(PADDED, *drafted_batch))


def _shapes() -> Iterator[tuple[str, Batch, list[int], list[int]]]:
    mixed = make_batch([4, 1, 9, 3, 2], [7, 4, 0, 6, 3], 4, spare_columns=1, order="descending")
    yield "SPEC example", make_batch([3, 1, 2], [4, 3, 7], 4), [2, 0, 1], [1, 1, 2]
    yield "all accepted", mixed, [3, 0, 0, 2, 1], [4, 1, 0, 3, 2]
    yield "all rejected", mixed, [3, 0, 0, 2, 1], [1, 1, 1, 1, 1]
    yield "no drafts", mixed, [0] * 5, [1, 1, 0, 1, 1]
    yield "drafts behind further queries", mixed, [1, 0, 3, 1, 1], [1, 1, 2, 1, 1]
    yield "none sampled", mixed, [3, 0, 2, 2, 1], [0, 0, 0, 0, 0]
    fields: dict[str, Any] = {"padded_requests": 2, "padded_tokens": 3, "spare_slots": 3}
    yield "graph padding", make_batch([3, 2], [5, 0], 4, **fields), [2, 1], [1, 1]
    fields = {"logits_indices": (1, 2, 4), "encoder_seq_lens": (3, 4), "subclassed": True}
    yield "all optional fields (K2)", make_batch([3, 2], [5, 0], 4, **fields), [2, 1], [2, 1]
    fields = {"dcp_local_seq_lens": (4, 1), "causal": False}
    yield "rank shares, not causal", make_batch([3, 2], [5, 0], 4, **fields), [2, 1], [3, 2]
    yield "idle rows", make_batch([0, 3, 0, 2], [4, 1, 0, 0], 4), [0, 2, 0, 1], [0, 1, 0, 1]
    yield "no requests", make_batch([], [], 4), [], []
    yield "only graph padding", make_batch([], [], 4, padded_requests=2, padded_tokens=2), [], []
    slack = make_batch([3, 2], [5, 1], 4, query_slack=2, seq_slack=9)
    yield "bounds above the longest", slack, [2, 1], [1, 1]
    strided = make_batch([3, 4], [2, 1], 4, strided=True, dtype="int64", spare_slots=2)
    yield "strided int64", strided, [2, 3], [1, 3]
    for dtype in ("int64 offsets", "int64 lengths", "int64 computed"):
        yield f"{dtype} only", make_batch([3, 4], [2, 1], 4, dtype=dtype), [2, 3], [1, 3]
    for rows in (63, 64, 65):
        queries = [4] * rows
        yield (
            f"{4 * rows} tokens at a kernel tile",
            make_batch(queries, [5 + row % 3 for row in range(rows)], 4),
            [3] * rows,
            [1 + row % 4 for row in range(rows)],
        )
    rows = 700
    yield "many rows", make_batch([3] * rows, [9] * rows, 4), [2] * rows, [1, 3] * (rows // 2)
    yield "a long prompt", make_batch([3000, 4], [0, 9], 16), [0, 3], [1, 2]
    yield "slots beyond 2**31", make_batch([3], [255], 256, first=2**31 - 2), [2], [2]


def _boundaries(name: str) -> Iterator[tuple[str, Case]]:
    for title, batch, drafts, sampled in _shapes():
        yield title, _case(name, batch, drafts, sampled)


def _steps(name: str, batch: Batch) -> Iterator[Case]:
    whole = without_shares(batch) if name == DROP else batch
    yield _case(name, whole, *drafts_of(batch))


def _timed(name: str, batch: Batch) -> Iterator[Case]:
    if batch.num_requests == 64:
        yield from _steps(name, batch)


def _prepare_drop(case: Case, pattern: int, device: str) -> Call:
    call = prepare_metadata(case, pattern, device, {_METADATA: ...})
    padding = [0] * batch_of(case).padded_requests
    lists = {
        "sampled_token_ids": [
            [(row + place) % 3 * 11 for place in range(count)]
            for row, count in enumerate((*case.params["sampled"], *padding))
        ],
        "num_draft_tokens": [*case.params["drafts"], *padding],
    }
    call.args |= lists
    call.plain |= lists
    call.facts = _facts(case, call.facts.metadata)
    return call


def _prepare_padded(case: Case, pattern: int, device: str) -> Call:
    batch = batch_of(case)
    padding, step = [0] * batch.padded_requests, (2 if batch.strided else 1,)
    ends = np.array([*accumulate([*case.params["drafts"], *padding])], dtype=np.int32)
    counts = np.array([*case.params["sampled"], *padding], dtype=np.int32)
    more = [
        Piece("cu_num_draft_tokens", ends, False, step),
        Piece("valid_sampled_tokens_count", counts, False, step),
    ]
    metadata, arena = lay_out(batch, pattern, device, more)
    return Call(
        {
            _METADATA: metadata,
            "spec_decode_metadata": SpecDecodeStep(arena.tensors["cu_num_draft_tokens"]),
            "valid_sampled_tokens_count": arena.tensors["valid_sampled_tokens_count"],
        },
        arena=arena,
        facts=_facts(case, metadata),
    )


def _facts(case: Case, metadata: Any) -> _DraftFacts:
    return _DraftFacts(batch=batch_of(case), metadata=metadata, rejected=rejected_of(case))


def _drop_outputs(call: Call, result: Any) -> Outputs:
    child, indices = result
    return child_fields(child, call.facts.metadata) | {INDICES: indices}


def _padded_outputs(call: Call, result: Any) -> Outputs:
    child, to_sample, rejected = result
    fields = child_fields(child, call.facts.metadata)
    return fields | {TO_SAMPLE: to_sample, REJECTED: rejected}


def _drop_invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    yield from child_violations(outputs, call.facts.metadata)
    kept = kept_tokens(call.facts.batch, call.facts.rejected)
    if not np.array_equal(int64_array(outputs[INDICES]), kept):
        yield Violation(INDICES, "are not the tokens that are kept")
    if outputs["num_actual_tokens"] != len(kept):
        yield Violation("num_actual_tokens", "is not the number of kept tokens")
    slots = call.facts.metadata.slot_mapping.cpu().numpy()
    if not np.array_equal(int64_array(outputs["slot_mapping"]), slots[kept]):
        yield Violation("slot_mapping", "is not that of the kept tokens")


def _padded_invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    yield from child_violations(outputs, call.facts.metadata)
    rejected = int64_array(outputs[REJECTED])
    if not np.array_equal(rejected, call.facts.rejected):
        yield Violation(REJECTED, "is not the number of rejected tokens")
    ends = int64_array(outputs["query_start_loc_cpu"])[1:]
    if not np.array_equal(int64_array(outputs[TO_SAMPLE]), ends - 1 - call.facts.rejected):
        yield Violation(TO_SAMPLE, "is not the last token that is kept")


def _drop_consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check that a kept token is read back where it is written, and a rejected one is in no row."""
    tokens = kept_tokens(call.facts.batch, call.facts.rejected)
    yield from child_consumed(call.facts.batch, outputs, tokens)


def _padded_consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    yield from child_consumed(
        call.facts.batch, outputs, np.arange(call.facts.batch.num_tokens, dtype=np.int64)
    )


def _diagnose(call: Call, place: Place, expected: Any, got: Any) -> str:
    return diagnose_kept(call.facts.metadata, call.facts.rejected, place.field, expected, got)


def _relations(indices: str) -> Relations:
    """Return the relations of a function with token indices in an output of this name."""
    return Relations(
        joined={
            "query_start_loc": Joined.OFFSETS,
            "query_start_loc_cpu": Joined.OFFSETS,
            "seq_lens": Joined.ENTRIES,
            "seq_lens_cpu": Joined.ENTRIES,
            "num_computed_tokens_cpu": Joined.ENTRIES,
            "slot_mapping": Joined.ENTRIES,
            indices: Joined.TOKEN_INDICES,
        },
        per_request=frozenset({"drafts", "sampled"}),
        blocks=frozenset({"block_table_tensor"}),
        slots=frozenset({"slot_mapping"}),
    )


prepare_inputs = Operation(
    name=DROP,
    section="14",
    summary="a drafter's batch, without the rejected tokens",
    inputs=Inputs(
        params=DraftParams,
        problem=_drop_problem,
        unreal=draft_unreal,
        cases=_drop_cases,
        boundaries=lambda: _boundaries(DROP),
        from_batch=lambda batch: _steps(DROP, batch),
        faults=faults_of(reference.prepare_inputs, _prepare_drop) | DROP_FAULTS,
    ),
    call=FunctionCall(prepare=_prepare_drop, outputs=_drop_outputs),
    contract=Contract(
        relations=_relations("token_indices"),
        invariants=_drop_invariants,
        consume=_drop_consumed,
        diagnose=_diagnose,
        may_alias=frozenset((*_KEPT_ROWS, "dcp_local_seq_lens", *REQUEST_FIELDS)),
    ),
    bench=Bench(cases=lambda batch: _timed(DROP, batch)),
    built_in=BuiltIn(kernels=True),
)

prepare_inputs_padded = Operation(
    name=PADDED,
    section="14",
    summary="a drafter's batch, with the rejected tokens as padding",
    inputs=Inputs(
        params=DraftParams,
        problem=draft_problem,
        unreal=draft_unreal,
        cases=_padded_cases,
        boundaries=lambda: _boundaries(PADDED),
        from_batch=lambda batch: _steps(PADDED, batch),
        faults=faults_of(reference.prepare_inputs_padded, _prepare_padded) | PADDED_FAULTS,
    ),
    call=FunctionCall(prepare=_prepare_padded, outputs=_padded_outputs),
    contract=Contract(
        relations=_relations("token_indices_to_sample"),
        invariants=_padded_invariants,
        consume=_padded_consumed,
        diagnose=_diagnose,
        may_alias=_VIEWS,
    ),
    bench=Bench(cases=lambda batch: _timed(PADDED, batch)),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (prepare_inputs, prepare_inputs_padded)
