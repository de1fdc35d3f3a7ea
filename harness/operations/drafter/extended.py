"""Operations of SPEC.md section 14: a batch whose queries get further tokens, and their slots.

The batch of a case is the extended one, so its numbers give each token's block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import HIGHEST_BLOCK, batches, make_batch
from attnproof.harness.cases.batches.subclass import REQUEST_FIELDS
from attnproof.harness.cases.batches.tensors import batch_arrays, lay_out, table_piece
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.consumer.batch import (
    expected_tokens,
    int64_array,
    metadata_violations,
    slot_violations,
)
from attnproof.harness.model.call import Call, Outputs, Quantity
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.drafter.diagnosis import diagnose_slots
from attnproof.harness.operations.drafter.extended_faults import EXTEND_FAULTS, SLOT_FAULTS
from attnproof.harness.operations.shared.metadata import (
    BatchFacts,
    batch_of,
    diagnose_metadata,
    metadata_outputs,
    mirror_violations,
)
from attnproof.harness.operations.shared.params import Few, Lengths, Params, Positive, Tokens

EXTEND, SLOTS = "extend_all_queries_by_N", "compute_new_slot_mapping"
_NO_LIMIT = 2**31 - 1
_KEPT = ("num_computed_tokens_cpu", "block_table_tensor", "encoder_seq_lens", "dcp_local_seq_lens")


class _ExtendParams(Params):
    more: Few
    """Further tokens of each row."""
    spare: Tokens = 0
    """Stale entries of arange and slots behind those that are needed."""


class _SlotParams(Params):
    more: Few
    rejected: Lengths
    """Rejected tokens at the end of each row."""
    max_model_len: Positive = _NO_LIMIT
    columns: Count | None = None
    """Columns of the block table, None for all."""
    narrow: bool = False
    """True if positions are int32."""


@dataclass(frozen=True, kw_only=True)
class _ExtendedFacts(BatchFacts):
    rejected: np.ndarray
    """(tokens,) true for a rejected token of the extended batch."""
    params: dict[str, Any]


def _problem(case: Case) -> str:
    batch, more = batch_of(case), case.params["more"]
    if batch.padded_requests:
        return "batch.padded_requests: each row is extended"
    if any(query_len < more for query_len in batch.query_lens):
        return f"more: {more}, of fewer tokens"
    if more and batch.dcp_local_seq_lens is not None:
        return "batch.dcp_local_seq_lens: rank shares of longer sequences are not known"
    rejected = case.params.get("rejected")
    if rejected is None:
        return ""
    if len(rejected) != batch.num_requests:
        return f"rejected: {len(rejected)} entries for {batch.num_requests} requests"
    fit = all(n <= q for n, q in zip(rejected, batch.query_lens, strict=True))
    return "" if fit else "rejected: more than there are tokens"


def _unreal(case: Case) -> str:
    batch, more = batch_of(case), case.params["more"]
    if more in batch.query_lens:
        return "an engine gives each request of a step a token"
    if case.params.get("columns") is not None:
        return "an engine gives a draft token a block"
    return "positions of an engine are int64" if case.params.get("narrow") else ""


def _whole(batch: Batch) -> Batch:
    """Return the batch without padded rows, whose number the optional fields must agree with."""
    shares = batch.encoder_seq_lens
    return msgspec.structs.replace(
        batch,
        padded_requests=0,
        encoder_seq_lens=shares and shares[: batch.num_requests],
        dcp_local_seq_lens=None,
    )


def _parent(batch: Batch, more: int) -> Batch:
    """Return the batch before it is extended; its blocks are cut to its sequences."""
    query_lens = tuple(query_len - more for query_len in batch.query_lens)
    lengths = [q + c for q, c in zip(query_lens, batch.computed_lens, strict=True)]
    counts = [-(-length // batch.block_size) for length in lengths]
    tokens = sum(query_lens) + batch.padded_tokens
    indices = batch.logits_indices
    return msgspec.structs.replace(
        batch,
        query_lens=query_lens,
        blocks=tuple(ids[:n] for ids, n in zip(batch.blocks, counts, strict=True)),
        logits_indices=indices and tuple(index for index in indices if index < tokens),
    )


@st.composite
def _extended_batches(draw: st.DrawFn, *, extras: bool) -> tuple[Batch, int]:
    batch = _whole(draw(batches(extras=extras)))
    return batch, draw(st.integers(0, min([3, *batch.query_lens])))


@st.composite
def _extend_cases(draw: st.DrawFn) -> Case:
    batch, more = draw(_extended_batches(extras=True))
    return Case(EXTEND, batch, {"more": more, "spare": draw(st.sampled_from((0, 0, 2)))})


@st.composite
def _slot_cases(draw: st.DrawFn) -> Case:
    batch, more = draw(_extended_batches(extras=False))
    ends = [q + c for q, c in zip(batch.query_lens, batch.computed_lens, strict=True)]
    limits = [_NO_LIMIT, *(max(1, end + off) for end in ends for off in (-1, 0))]
    return _slot_case(
        batch,
        more,
        [draw(st.integers(0, min(query_len, 3))) for query_len in batch.query_lens],
        max_model_len=draw(st.sampled_from(limits)),
        columns=draw(st.sampled_from((None, None, None, None, 0, 1, 2))),
        narrow=draw(st.sampled_from((False, False, True))),
    )


def _slot_case(batch: Batch, more: int, rejected: list[int] | None = None, **others: Any) -> Case:
    rows = rejected or [0] * batch.num_requests
    return Case(SLOTS, batch, {"more": more, "rejected": rows} | others)


def _shapes() -> Iterator[tuple[str, Batch, int]]:
    yield "SPEC example", make_batch([4, 3], [4, 0], 4), 2
    mixed = make_batch([3, 7, 2, 5], [7, 0, 3, 9], 4, spare_columns=1, order="descending")
    yield "one further token", mixed, 1
    yield "two further tokens", mixed, 2
    yield "no further token", mixed, 0
    yield "rows without a query before", make_batch([2, 5, 2], [3, 0, 0], 4), 2
    yield "no requests", make_batch([], [], 4, padded_tokens=2), 3
    fields: dict[str, Any] = {"padded_tokens": 3, "spare_slots": 2}
    yield "graph padding tokens", make_batch([3, 2], [5, 0], 4, **fields), 1
    fields |= {"subclassed": True, "encoder_seq_lens": (3, 4), "logits_indices": (0, 2)}
    yield "all optional fields (K2)", make_batch([3, 2], [5, 0], 4, **fields), 1
    strided = make_batch([3, 4], [2, 1], 4, strided=True, dtype="int64", subclassed=True)
    yield "strided int64", strided, 2
    for dtype in ("int64 offsets", "int64 lengths", "int64 computed"):
        yield f"{dtype} only", make_batch([3, 4], [2, 1], 4, dtype=dtype), 1
    slack = make_batch([3, 2], [5, 1], 4, query_slack=2, seq_slack=9)
    yield "bounds above the longest", slack, 1
    yield "many rows", make_batch([3] * 300, [9] * 300, 4, subclassed=True), 2


def _extend_boundaries() -> Iterator[tuple[str, Case]]:
    for name, batch, more in _shapes():
        yield name, Case(EXTEND, batch, {"more": more, "spare": 1})
    shares = make_batch([3, 2], [5, 0], 4, dcp_local_seq_lens=(4, 1), causal=False)
    yield "rank shares, nothing added", Case(EXTEND, shares, {"more": 0})


def _slot_boundaries() -> Iterator[tuple[str, Case]]:
    for name, batch, more in _shapes():
        rejected = [row % (1 + min(q, 2)) for row, q in enumerate(batch.query_lens)]
        yield name, _slot_case(batch, more, rejected)
    mixed = make_batch([3, 7, 2, 5], [7, 0, 3, 9], 4, order="descending")
    yield "all rejected", _slot_case(mixed, 1, [3, 7, 2, 5])
    for limit in (1, 9, 10, 13, 14):
        yield f"max_model_len {limit}", _slot_case(mixed, 1, max_model_len=limit)
    yield "position beyond its row's columns (K14)", _slot_case(mixed, 1, columns=2)
    yield "table without columns", _slot_case(mixed, 1, columns=0)
    for block_size in (1, 16, 256):
        highest = make_batch([3, 2], [block_size - 1, 0], block_size, first=HIGHEST_BLOCK - 4)
        yield f"highest block ids, block size {block_size} (K15)", _slot_case(highest, 1)
    for tokens in (255, 256, 257, 3000):
        yield f"{tokens} tokens at a kernel tile", _slot_case(make_batch([tokens], [5], 16), 1)
    yield "int32 positions", _slot_case(mixed, 1, narrow=True)


def _extend_steps(batch: Batch) -> Iterator[Case]:
    whole = _whole(batch)
    yield Case(EXTEND, whole, {"more": min([1, *whole.query_lens])})


def _slot_steps(batch: Batch) -> Iterator[Case]:
    whole = _whole(batch)
    rejected = [row % min(q, 4) if q else 0 for row, q in enumerate(whole.query_lens)]
    yield _slot_case(whole, min([1, *whole.query_lens]), rejected)


def _lay_out(case: Case, pattern: int, device: str, more: list[Piece]) -> tuple[Any, Arena]:
    """Return the smaller batch with the block table of the extended one."""
    batch, stale = batch_of(case), STALE_PATTERNS[pattern]
    columns = case.params.get("columns")
    table = batch_arrays(batch, pattern).block_table_with(stale)[:, :columns]
    piece = table_piece("extended_table", table, 2 if batch.strided else 1)
    parent = _parent(batch, case.params["more"])
    metadata, arena = lay_out(parent, pattern, device, [piece, *more])
    return replace(metadata, block_table_tensor=arena.tensors["extended_table"]), arena


def _rejected(case: Case) -> np.ndarray:
    """Return for each token of the extended batch, padding included, whether it is rejected."""
    batch = batch_of(case)
    rejected = np.zeros(batch.num_tokens + batch.padded_tokens, bool)
    end = 0
    for query_len, count in zip(batch.query_lens, case.params.get("rejected", ()), strict=False):
        end += query_len
        rejected[end - count : end] = True
    return rejected


def _prepare_extend(case: Case, pattern: int, device: str) -> Call:
    batch, stale = batch_of(case), STALE_PATTERNS[pattern]
    spare, step = case.params.get("spare", 0), (2 if batch.strided else 1,)
    slots = np.concatenate([batch_arrays(batch, pattern).slot_mapping, np.full(spare, stale)])
    counts = np.array([*range(batch.num_requests + 1), *[stale] * spare], dtype=np.int32)
    pieces = [
        Piece("arange", counts, False, step),
        Piece("new_slot_mapping", slots.astype(np.int64), False, step),
    ]
    metadata, arena = _lay_out(case, pattern, device, pieces)
    arguments = {"arange": arena.tensors["arange"]}
    arguments["new_slot_mapping"] = arena.tensors["new_slot_mapping"]
    return Call(
        {"common_attn_metadata": metadata, "N": case.params["more"]} | arguments,
        arena=arena,
        facts=_facts(case, metadata),
    )


def _prepare_slots(case: Case, pattern: int, device: str) -> Call:
    batch, rejected, params = batch_of(case), _rejected(case), case.params
    step, stale = (2 if batch.strided else 1,), STALE_PATTERNS[pattern]
    positions = np.full(len(rejected), stale, np.int32 if params.get("narrow") else np.int64)
    positions[: batch.num_tokens] = expected_tokens(batch).positions
    positions[rejected] = 0
    # The arena's words are integers: the mask is a view of bytes.
    pieces = [
        Piece("new_positions", positions, False, step),
        Piece("is_rejected_token_mask", rejected.astype(np.uint8), False, step),
    ]
    metadata, arena = _lay_out(case, pattern, device, pieces)
    return Call(
        {
            "cad": metadata,
            "new_positions": arena.tensors["new_positions"],
            "is_rejected_token_mask": arena.tensors["is_rejected_token_mask"].view(torch.bool),
            "block_size": batch.block_size,
            "num_new_tokens": params["more"],
            "max_model_len": params.get("max_model_len", _NO_LIMIT),
        },
        arena=arena,
        facts=_facts(case, metadata),
    )


def _facts(case: Case, metadata: Any) -> _ExtendedFacts:
    batch = batch_of(case)
    return _ExtendedFacts(
        batch=batch,
        metadata=metadata,
        rejected=_rejected(case),
        params=case.params,
        tokens=batch.num_tokens,
        result=Quantity.SLOTS,
    )


def _extend_outputs(call: Call, result: Any) -> Outputs:
    return metadata_outputs(result, given=call.facts.metadata)


def _extend_invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    yield from mirror_violations(outputs)
    batch = call.facts.batch
    if outputs["num_actual_tokens"] != batch.num_tokens + batch.padded_tokens:
        yield Violation("num_actual_tokens", "is not the number of tokens")
    if outputs["logits_indices_padded"] is not None:
        yield Violation("logits_indices_padded", "are those of the smaller batch")


def _extend_consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check the keys that each token of the extended batch sees, and where it is written."""
    expected = expected_tokens(call.facts.batch)
    yield from metadata_violations(expected, outputs)
    slots = outputs["slot_mapping"][: outputs["num_actual_tokens"]]
    yield from slot_violations(expected, slots, "slot_mapping")


def _slot_invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    slots = int64_array(outputs["result"])
    if (slots[call.facts.rejected] != -1).any():
        yield Violation("result", "gives a slot to a rejected token")
    if (slots[call.facts.batch.num_tokens :] != -1).any():
        yield Violation("result", "gives a slot to graph padding")
    live = slots >= 0
    positions = int64_array(call["new_positions"])
    block_size = call.facts.batch.block_size
    if (slots[live] % block_size != positions[live] % block_size).any():
        yield Violation("result", "puts a token at another offset of its block")
    if (positions[live] >= call["max_model_len"]).any():
        yield Violation("result", "gives a slot to a position beyond max_model_len")


def _slots_consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check that a rejected token is written nowhere, and any other one where it is read."""
    expected, params = expected_tokens(call.facts.batch), call.facts.params
    columns = params.get("columns")
    width = expected.table.shape[1] if columns is None else columns
    unwritten = call.facts.rejected[: len(expected.positions)].copy()
    unwritten |= expected.positions >= call["max_model_len"]
    unwritten |= expected.positions // expected.block_size >= width
    yield from slot_violations(expected, outputs["result"], "result", unwritten=unwritten)


def _diagnose_slots(call: Call, _place: Place, expected: Any, got: Any) -> str:
    if not isinstance(got, torch.Tensor) or got.shape != expected.shape:
        return ""
    wrong = (expected != got).cpu().numpy()
    if call.facts.rejected[wrong].all():
        return "a slot for a rejected token"
    return diagnose_slots(expected, got)


extend_all_queries = Operation(
    name=EXTEND,
    section="14",
    summary="a batch whose queries all get further tokens",
    inputs=Inputs(
        params=_ExtendParams,
        problem=_problem,
        unreal=_unreal,
        cases=_extend_cases,
        boundaries=_extend_boundaries,
        from_batch=_extend_steps,
        faults=EXTEND_FAULTS,
    ),
    call=FunctionCall(prepare=_prepare_extend, outputs=_extend_outputs),
    contract=Contract(
        invariants=_extend_invariants,
        consume=_extend_consumed,
        diagnose=diagnose_metadata,
        may_alias=frozenset((*_KEPT, "slot_mapping", *REQUEST_FIELDS)),
    ),
    bench=Bench(cases=lambda batch: _extend_steps(batch) if batch.num_requests == 64 else ()),
    built_in=BuiltIn(kernels=True),
)

compute_new_slot_mapping = Operation(
    name=SLOTS,
    section="14",
    summary="slots of a batch whose queries all got further tokens",
    inputs=Inputs(
        params=_SlotParams,
        problem=_problem,
        unreal=_unreal,
        cases=_slot_cases,
        boundaries=_slot_boundaries,
        from_batch=_slot_steps,
        faults=SLOT_FAULTS,
    ),
    call=FunctionCall(prepare=_prepare_slots, outputs=lambda _call, result: {"result": result}),
    contract=Contract(
        invariants=_slot_invariants, consume=_slots_consumed, diagnose=_diagnose_slots
    ),
    bench=Bench(cases=lambda batch: _slot_steps(batch) if batch.num_requests == 64 else ()),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (compute_new_slot_mapping, extend_all_queries)
