"""Operations of SPEC.md section 3: micro-batch (ubatch) slicing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import accumulate
from typing import Any

import msgspec
import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.cases.batches.subclass import REQUEST_FIELDS, TOKEN_FIELDS
from attnproof.harness.cases.batches.tensors import batch_arrays
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.consumer.batch import expected_tokens, metadata_violations, slot_violations
from attnproof.harness.consumer.visible_keys import ExpectedTokens
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.operation import MISSING, Breach, Call, Operation, Outputs
from attnproof.harness.operations.shared.metadata import (
    batch_of,
    diagnose_metadata,
    has_logits,
    metadata_outputs,
    mirror_breaches,
    prepare_with_metadata,
    returned,
    token_positions,
    wrong_type,
    wrong_value,
)
from attnproof.harness.operations.ubatch.slices import (
    SLICE_FAULTS,
    Span,
    shapes,
    sliceable,
    spans_at,
    ubatch_of,
)

LOCS, MAKE, SPLIT = "slice_query_start_locs", "_make_metadata_with_slice", "split_attn_metadata"
_VIEWS = (
    "block_table_tensor",
    "slot_mapping",
    "encoder_seq_lens",
    "dcp_local_seq_lens",
    *REQUEST_FIELDS,
    *TOKEN_FIELDS,
)


def spans_of(case: Case) -> list[Span]:
    """The slices of a case: all of its cuts give, or the one that it picks."""
    batch = batch_of(case)
    spans = spans_at(batch, case.params["cuts"]) if case.params["cuts"] is not None else []
    if case.operation == MAKE:
        return [spans[min(case.params["index"], len(spans) - 1)]]
    picked = case.params.get("picked")
    return spans if picked is None else [spans[min(i, len(spans) - 1)] for i in picked]


def _locs_case(batch: Batch, start: int, stop: int) -> Case:
    return Case(LOCS, batch, {"start": start, "stop": stop})


@st.composite
def _locs_cases(draw: st.DrawFn) -> Case:
    batch = draw(batches(min_requests=1))
    start = draw(st.integers(0, batch.num_requests - 1))
    return _locs_case(batch, start, draw(st.integers(start + 1, batch.num_requests)))


def _locs_boundaries() -> Iterator[tuple[str, Case]]:
    batch = make_batch([3, 1, 0, 9], [0, 5, 2, 7], 4)
    yield "all requests", _locs_case(batch, 0, 4)
    yield "first request", _locs_case(batch, 0, 1)
    yield "last request", _locs_case(batch, 3, 4)
    yield "zero-length request", _locs_case(batch, 2, 3)
    yield (
        "strided int64",
        _locs_case(msgspec.structs.replace(batch, dtype="int64", strided=True), 1, 4),
    )


def _locs_steps(batch: Batch) -> Iterator[Case]:
    if batch.num_requests:
        yield _locs_case(batch, batch.num_requests // 3, batch.num_requests)


def _prepare_locs(case: Case, pattern: int, device: str) -> Call:
    batch = batch_of(case)
    offsets = batch_arrays(batch).query_start_loc
    step = (2 if batch.strided else 1,)
    arena = Arena([Piece("query_start_loc", offsets, False, step)], STALE_PATTERNS[pattern], device)
    stop = min(case.params["stop"], batch.num_requests)
    request_slice = slice(min(case.params["start"], stop - 1), stop)
    return Call([arena.tensors["query_start_loc"], request_slice], arena=arena)


def _locs_invariants(_call: Call, outputs: Outputs) -> Iterator[Breach]:
    result = outputs["result"]
    if isinstance(result, torch.Tensor) and result.numel() and int(result[0]) != 0:
        yield Breach("result", "does not start at 0")


slice_query_start_locs = Operation(
    name=LOCS,
    section="3",
    summary="offsets of some of the requests, rebased to 0",
    cases=_locs_cases,
    boundaries=_locs_boundaries,
    from_batch=_locs_steps,
    prepare=_prepare_locs,
    outputs=returned,
    invariants=_locs_invariants,
    kernels=True,
    faults={
        "empty slice": wrong_value(1, "request_slice", slice(0, 0)),
        "slice beyond the requests": wrong_value(1, "request_slice", slice(0, 10_000)),
        "slice with a step": wrong_value(
            1, "request_slice", slice(0, 2, 2), lambda case: case.num_requests > 1
        ),
        "slice of another type": wrong_type(1, "request_slice"),
        "offsets of another type": wrong_type(0, "query_start_loc"),
    },
)


def _make_case(batch: Batch, cuts: list[int], index: int) -> Case:
    return Case(MAKE, batch, {"cuts": cuts, "index": index})


def _split_case(batch: Batch, cuts: list[int] | None, picked: list[int] | None = None) -> Case:
    """The batch cut at `cuts` (None for no slice at all); only the `picked` slices if given."""
    params: dict[str, Any] = {"cuts": cuts}
    return Case(SPLIT, batch, params if picked is None else params | {"picked": picked})


@cache
def _cuts(last: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(1, last), max_size=3)


@st.composite
def _cut_batches(draw: st.DrawFn) -> tuple[Batch, list[int]]:
    batch = draw(batches(min_requests=1, extras=True))
    ends = list(accumulate(batch.query_lens))
    cuts = draw(_cuts(max(1, batch.num_tokens + batch.padded_tokens - 1)))
    return sliceable(batch, cut=not set(cuts) <= set(ends)), cuts


@st.composite
def _make_cases(draw: st.DrawFn) -> Case:
    batch, cuts = draw(_cut_batches())
    return _make_case(batch, cuts, draw(st.integers(0, len(cuts))))


_PICKED = st.sampled_from((None, None, None, [1, 0], [0, 0], [2]))


@st.composite
def _split_cases(draw: st.DrawFn) -> Case:
    batch, cuts = draw(_cut_batches())
    return _split_case(batch, cuts, draw(_PICKED))


def _make_boundaries() -> Iterator[tuple[str, Case]]:
    for name, batch, cuts in shapes():
        for index in sorted({0, 1, len(cuts)} & set(range(len(cuts) + 1))):
            yield f"{name}, slice {index}", _make_case(batch, cuts, index)


def _split_boundaries() -> Iterator[tuple[str, Case]]:
    for name, batch, cuts in shapes():
        yield name, _split_case(batch, cuts)
    mixed = make_batch([3, 1, 4], [2, 5, 0], 4, padded_tokens=2)
    yield "slices in another order", _split_case(mixed, [2, 4, 6], [3, 1, 0])
    yield "some of the slices", _split_case(mixed, [2, 4, 6], [1, 3])
    yield "no slices", _split_case(make_batch([1], [0], 4), None)


def _make_steps(batch: Batch) -> Iterator[Case]:
    if batch.num_tokens:
        yield _make_case(batch, [batch.num_tokens // 3, batch.num_tokens // 2], 1)


def _split_steps(batch: Batch) -> Iterator[Case]:
    if batch.num_tokens:
        yield _split_case(batch, [batch.num_tokens // 2])


def _make_timed(batch: Batch) -> Iterator[Case]:
    """The second of two slices of as many tokens, which mostly begins inside a request."""
    if batch.num_tokens > 1:
        yield _make_case(batch, [batch.num_tokens // 2], 1)


def _split_timed(batch: Batch) -> Iterator[Case]:
    """Two slices of as many tokens, as micro-batching makes them."""
    if batch.num_tokens > 1:
        yield _split_case(batch, [batch.num_tokens // 2])


def _prepare_make(case: Case, pattern: int, device: str) -> Call:
    spans = spans_of(case)
    call = prepare_with_metadata(1)(case, pattern, device, [ubatch_of(spans[0])])
    call.facts["spans"] = spans
    return call


def _prepare_split(case: Case, pattern: int, device: str) -> Call:
    spans = spans_of(case)
    call = prepare_with_metadata(1)(case, pattern, device, [[ubatch_of(span) for span in spans]])
    call.facts |= {"spans": spans, "picked": case.params.get("picked")}
    call.plain["ubatch_slices"] = call.args[0]
    return call


def _child_breaches(call: Call, outputs: Outputs, prefix: str, span: Span) -> Iterator[Breach]:
    breaches = list(mirror_breaches(outputs, prefix))
    yield from breaches
    if breaches or outputs.get(f"{prefix}query_start_loc_cpu", MISSING) is MISSING:
        return
    parent = batch_arrays(call.facts["batch"])  # block ids do not matter here
    t0 = span[2]
    try:
        offsets = outputs[f"{prefix}query_start_loc_cpu"].numpy()
        computed = outputs[f"{prefix}num_computed_tokens_cpu"].numpy()
        positions = token_positions(offsets, computed)
    except (AttributeError, ValueError):
        return
    whole = token_positions(parent.query_start_loc, parent.num_computed_tokens)
    if not np.array_equal(positions, whole[t0 : t0 + len(positions)]):
        yield Breach(f"{prefix}num_computed_tokens_cpu", "moves tokens to other positions")


def _child_consumed(
    expected: ExpectedTokens, outputs: Outputs, prefix: str, span: Span
) -> Iterator[Breach]:
    """The child's queries are the tokens of its slice; they see what they saw in the batch."""
    tokens = np.arange(span[2], min(span[3], len(expected.requests)))
    yield from metadata_violations(expected, outputs, prefix, tokens=tokens)
    slots = f"{prefix}slot_mapping"
    yield from slot_violations(expected, outputs[slots], slots, tokens=tokens)


def _make_consumed(call: Call, outputs: Outputs) -> Iterator[Breach]:
    expected = expected_tokens(call.facts["batch"])
    yield from _child_consumed(expected, outputs, "", call.facts["spans"][0])


def _split_consumed(call: Call, outputs: Outputs) -> Iterator[Breach]:
    """Each child by its own slice, so that those of all slices cover each token once."""
    expected, spans = expected_tokens(call.facts["batch"]), call.facts["spans"]
    if outputs["num_children"] != len(spans):
        yield Breach("num_children", "is not the number of slices")
        return
    for index, span in enumerate(spans):
        yield from _child_consumed(expected, outputs, f"[{index}].", span)


def _make_invariants(call: Call, outputs: Outputs) -> Iterator[Breach]:
    yield from _child_breaches(call, outputs, "", call.facts["spans"][0])


def _split_invariants(call: Call, outputs: Outputs) -> Iterator[Breach]:
    spans = call.facts["spans"]
    for index, span in enumerate(spans):
        yield from _child_breaches(call, outputs, f"[{index}].", span)
    slots = [outputs[f"[{index}].slot_mapping"] for index in range(len(spans))]
    whole_batch = call.facts["picked"] is None and bool(slots)
    if whole_batch and all(isinstance(piece, torch.Tensor) for piece in slots):
        metadata = call.facts["metadata"]
        whole = metadata.slot_mapping[: metadata.num_actual_tokens]
        if not torch.equal(torch.cat(slots), whole):
            yield Breach("[].slot_mapping", "of all slices is not that of the batch")


def _split_outputs(call: Call, result: Any) -> Outputs:
    if not isinstance(result, list):
        raise TypeError("expected a list of metadata")
    outputs: Outputs = {"num_children": len(result)}
    for index in range(len(call.facts["spans"])):
        child = result[index] if index < len(result) else None
        outputs |= metadata_outputs(child, f"[{index}].", call.facts["metadata"])
    return outputs


_make_metadata_with_slice = Operation(
    name=MAKE,
    section="3",
    summary="the part of a batch in one slice, as a batch of its own",
    cases=_make_cases,
    boundaries=_make_boundaries,
    from_batch=_make_steps,
    timed=_make_timed,
    prepare=_prepare_make,
    outputs=lambda call, result: metadata_outputs(result, given=call.facts["metadata"]),
    invariants=_make_invariants,
    consume=_make_consumed,
    diagnose=diagnose_metadata,
    shares=frozenset(_VIEWS),
    faults=SLICE_FAULTS,
    kernels=True,
    syncs=has_logits,
)

split_attn_metadata = Operation(
    name=SPLIT,
    section="3",
    summary="one child batch for each slice",
    cases=_split_cases,
    boundaries=_split_boundaries,
    from_batch=_split_steps,
    timed=_split_timed,
    prepare=_prepare_split,
    outputs=_split_outputs,
    invariants=_split_invariants,
    consume=_split_consumed,
    diagnose=diagnose_metadata,
    shares=frozenset(f"[].{name}" for name in _VIEWS),
    faults=SLICE_FAULTS,
    kernels=True,
    syncs=has_logits,
)

OPERATIONS = (slice_query_start_locs, _make_metadata_with_slice, split_attn_metadata)
