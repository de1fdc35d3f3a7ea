"""Operations of SPEC.md section 3: slices of a batch as batches (micro-batches, ubatches)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches import later
from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.cases.batches.subclass import (
    REQUEST_FIELDS,
    REQUEST_TUPLES,
    TOKEN_FIELDS,
    TOKEN_LISTS,
)
from attnproof.harness.cases.batches.tensors import batch_arrays
from attnproof.harness.consumer.batch import expected_tokens, metadata_violations, slot_violations
from attnproof.harness.consumer.visible_keys import ExpectedTokens
from attnproof.harness.model.call import MISSING, Call, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place, child_outputs, of_children
from attnproof.harness.model.violation import Violation, in_child
from attnproof.harness.operations.shared.metadata import (
    BatchFacts,
    batch_of,
    diagnose_metadata,
    has_logits,
    metadata_outputs,
    mirror_violations,
    prepare_metadata,
    token_positions,
)
from attnproof.harness.operations.shared.params import Counts, Params
from attnproof.harness.operations.ubatch.slices import (
    Span,
    ends_inside,
    shapes,
    slice_faults,
    sliceable,
    spans_at,
    ubatch_of,
    without_cut_shares,
)

MAKE, SPLIT = "_make_metadata_with_slice", "split_attn_metadata"
_BY_REQUEST = (
    *("encoder_seq_lens", "dcp_local_seq_lens"),
    *(name for name in (*REQUEST_FIELDS, *REQUEST_TUPLES) if name != later.BOUND),
)
_BY_TOKEN = (*TOKEN_FIELDS, *TOKEN_LISTS)
"""Fields with an entry for each row or token, but for a bound that `mirror_violations` checks."""
_VIEWS = (
    "block_table_tensor",
    "slot_mapping",
    "encoder_seq_lens",
    "dcp_local_seq_lens",
    *REQUEST_FIELDS,
    *TOKEN_FIELDS,
)


class _MakeParams(Params):
    cuts: Counts
    """Query tokens at which the batch is cut."""
    index: Count
    """Index of the slice."""


class _SplitParams(Params):
    cuts: Counts | None
    """Query tokens at which the batch is cut, None for no slices."""
    picked: Counts | None = None
    """Indices of the slices, None for all."""


def _problem(case: Case) -> str:
    """Return why the batch cannot be cut: it has no row, or a cut request has rank shares."""
    batch, cuts = batch_of(case), case.params["cuts"]
    if cuts is None:
        return "picked: there are no slices without cuts" if case.params.get("picked") else ""
    if not batch.num_tokens + batch.padded_tokens:
        return "batch: no token to slice"
    if not batch.num_requests + batch.padded_requests:
        return "batch: no row to slice"
    if batch.dcp_local_seq_lens and ends_inside(batch, spans_of(case)):
        return "batch.dcp_local_seq_lens: a request with rank shares cannot be cut"
    return ""


def _unreal(case: Case) -> str:
    """Return why no engine cuts the batch in this way, "" if one may."""
    batch, cuts = batch_of(case), case.params["cuts"] or []
    if not batch.causal:
        return "an engine cuts causal batches only"
    if case.params.get("picked") is not None or case.params["cuts"] is None:
        return "an engine takes all slices, in order"
    if any(cut >= batch.num_tokens for cut in cuts):
        return "an engine begins no slice in padding"
    return ""


def spans_of(case: Case) -> list[Span]:
    """Return the slices of a case: all between its cuts, or the picked ones."""
    batch = batch_of(case)
    spans = spans_at(batch, case.params["cuts"]) if case.params["cuts"] is not None else []
    if case.operation == MAKE:
        return [spans[min(case.params["index"], len(spans) - 1)]]
    picked = case.params.get("picked")
    return spans if picked is None else [spans[min(i, len(spans) - 1)] for i in picked]


def _make_case(batch: Batch, cuts: list[int], index: int) -> Case:
    return Case(MAKE, batch, {"cuts": cuts, "index": index})


def _split_case(batch: Batch, cuts: list[int] | None, picked: list[int] | None = None) -> Case:
    """Return the case of a batch cut at `cuts`, None for no slice; `picked` selects slices."""
    params: dict[str, Any] = {"cuts": cuts}
    return Case(SPLIT, batch, params if picked is None else params | {"picked": picked})


@cache
def _cuts(last: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(1, last), max_size=3)


@st.composite
def _cut_batches(draw: st.DrawFn) -> tuple[Batch, list[int]]:
    batch = draw(batches(min_requests=1, extras=True))
    return sliceable(batch), draw(_cuts(max(1, batch.num_tokens + batch.padded_tokens - 1)))


@st.composite
def _make_cases(draw: st.DrawFn) -> Case:
    batch, cuts = draw(_cut_batches())
    case = _make_case(batch, cuts, draw(st.integers(0, len(cuts))))
    return without_cut_shares(case, spans_of(case))


_PICKED = st.sampled_from((None, None, None, [1, 0], [0, 0], [2]))


@st.composite
def _split_cases(draw: st.DrawFn) -> Case:
    batch, cuts = draw(_cut_batches())
    case = _split_case(batch, cuts, draw(_PICKED))
    return without_cut_shares(case, spans_of(case))


def _make_boundaries() -> Iterator[tuple[str, Case]]:
    for name, batch, cuts in shapes():
        for index in sorted({0, 1, len(cuts)} & set(range(len(cuts) + 1))):
            yield f"{name}, slice {index}", _make_case(batch, cuts, index)
    shares = make_batch([4, 3], [2, 5], 4, dcp_local_seq_lens=(3, 4, 0), padded_requests=1)
    yield "rank shares, slice that starts inside a request", _make_case(shares, [2], 1)


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
    """Yield the second half of the batch's tokens, which usually begins inside a request."""
    if batch.num_tokens > 1:
        yield _make_case(batch, [batch.num_tokens // 2], 1)


def _split_timed(batch: Batch) -> Iterator[Case]:
    """Yield two slices with equal numbers of tokens, as engines cut micro-batches."""
    if batch.num_tokens > 1:
        yield _split_case(batch, [batch.num_tokens // 2])


@dataclass(frozen=True, kw_only=True)
class _SliceFacts(BatchFacts):
    picked: list[int] | None = None
    """Indices of the slices that are given, None for all in order."""


def _prepare(case: Case, pattern: int, device: str, arguments: dict[str, Any]) -> Call:
    """Return a call with slices and with the batch as metadata."""
    call = prepare_metadata(case, pattern, device, arguments)
    call.facts = _SliceFacts(
        batch=call.facts.batch,
        metadata=call.facts.metadata,
        spans=tuple(spans_of(case)),
        picked=case.params.get("picked"),
    )
    return call


def _prepare_make(case: Case, pattern: int, device: str) -> Call:
    ubatch = ubatch_of(spans_of(case)[0])
    arguments = {"ubatch_slice": ubatch, "attn_metadata": ...}
    return _prepare(case, pattern, device, arguments)


def _prepare_split(case: Case, pattern: int, device: str) -> Call:
    ubatches = [ubatch_of(span) for span in spans_of(case)]
    arguments = {"ubatch_slices": ubatches, "common_attn_metadata": ...}
    call = _prepare(case, pattern, device, arguments)
    call.plain["ubatch_slices"] = ubatches
    return call


def _child_violations(call: Call, outputs: Outputs, span: Span) -> Iterator[Violation]:
    yield from _field_violations(call.facts.metadata, outputs, span)
    wrong = list(mirror_violations(outputs))
    yield from wrong
    if wrong or outputs.get("query_start_loc_cpu", MISSING) is MISSING:
        return
    parent = batch_arrays(call.facts.batch)  # positions depend on lengths only, not on block ids
    t0 = span[2]
    try:
        offsets = outputs["query_start_loc_cpu"].numpy()
        computed = outputs["num_computed_tokens_cpu"].numpy()
        positions = token_positions(offsets, computed)
    except (AttributeError, ValueError):
        return
    whole = token_positions(parent.query_start_loc, parent.num_computed_tokens)
    if not np.array_equal(positions, whole[t0 : t0 + len(positions)]):
        yield Violation("num_computed_tokens_cpu", "moves tokens to other positions")


def _field_violations(original: Any, outputs: Outputs, span: Span) -> Iterator[Violation]:
    """Check the fields that no consumer reads: their rows or tokens are those of the slice.

    Published code drops such fields (E5, E34, E57): the oracle `equality` alone sees that.
    """
    r0, r1, t0, t1 = span
    cuts = dict.fromkeys(_BY_REQUEST, (r0, r1)) | dict.fromkeys(_BY_TOKEN, (t0, t1))
    for name, (first, stop) in cuts.items():
        whole, part = getattr(original, name, None), outputs.get(name)
        if whole is not None and part is not None and part is not MISSING:
            wanted = _listed(whole)[first:stop]
            if type(part) is not type(whole) or _listed(part)[: len(wanted)] != wanted:
                yield Violation(name, "is not that of the slice's rows or tokens")


def _listed(values: Any) -> list[Any]:
    """Return the rows of a tensor, array, list or tuple; an empty list for a number."""
    listed = values.tolist() if isinstance(values, torch.Tensor | np.ndarray) else values
    return [*listed] if isinstance(listed, list | tuple) else []


def _child_consumed(expected: ExpectedTokens, outputs: Outputs, span: Span) -> Iterator[Violation]:
    """Compare the visible keys and the slots of a child's tokens with those in the batch."""
    tokens = np.arange(span[2], min(span[3], len(expected.requests)))
    yield from metadata_violations(expected, outputs, tokens=tokens)
    yield from slot_violations(expected, outputs["slot_mapping"], "slot_mapping", tokens=tokens)


def _make_consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    yield from _child_consumed(expected_tokens(call.facts.batch), outputs, call.facts.spans[0])


def _split_consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Compare each child with the tokens of its slice in the batch."""
    expected, spans = expected_tokens(call.facts.batch), call.facts.spans
    if outputs[Place("num_children")] != len(spans):
        yield Violation("num_children", "is not the number of slices")
        return
    for index, span in enumerate(spans):
        yield from in_child(_child_consumed(expected, child_outputs(outputs, index), span), index)


def _make_invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    yield from _child_violations(call, outputs, call.facts.spans[0])


def _split_invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    spans = call.facts.spans
    for index, span in enumerate(spans):
        yield from in_child(_child_violations(call, child_outputs(outputs, index), span), index)
    slots = [outputs[Place("slot_mapping", child=index)] for index in range(len(spans))]
    whole_batch = call.facts.picked is None and bool(slots)
    if whole_batch and all(isinstance(piece, torch.Tensor) for piece in slots):
        metadata = call.facts.metadata
        whole = metadata.slot_mapping[: metadata.num_actual_tokens]
        if not torch.equal(torch.cat(slots), whole):
            yield Violation("[].slot_mapping", "of all slices is not that of the batch")


def _split_outputs(call: Call, result: Any) -> Outputs:
    if not isinstance(result, list):
        raise TypeError("expected a list of metadata")
    wanted = len(call.facts.spans)
    children = [*result[:wanted], *[None] * (wanted - len(result))]
    outputs = of_children(metadata_outputs(c, original=call.facts.metadata) for c in children)
    return {Place("num_children"): len(result)} | outputs


_make_metadata_with_slice = Operation(
    name=MAKE,
    section="3",
    summary="one slice of a batch as a batch",
    inputs=Inputs(
        params=_MakeParams,
        problem=_problem,
        unreal=_unreal,
        cases=_make_cases,
        boundaries=_make_boundaries,
        from_batch=_make_steps,
        faults=slice_faults("ubatch_slice", "attn_metadata"),
    ),
    call=FunctionCall(
        prepare=_prepare_make,
        outputs=lambda call, result: metadata_outputs(result, original=call.facts.metadata),
    ),
    contract=Contract(
        invariants=_make_invariants,
        consume=_make_consumed,
        diagnose=diagnose_metadata,
        may_alias=frozenset(_VIEWS),
        may_sync=has_logits,
    ),
    bench=Bench(cases=_make_timed),
    built_in=BuiltIn(kernels=True),
)

split_attn_metadata = Operation(
    name=SPLIT,
    section="3",
    summary="one child batch for each slice",
    inputs=Inputs(
        params=_SplitParams,
        problem=_problem,
        unreal=_unreal,
        cases=_split_cases,
        boundaries=_split_boundaries,
        from_batch=_split_steps,
        faults=slice_faults("ubatch_slices", "common_attn_metadata"),
    ),
    call=FunctionCall(prepare=_prepare_split, outputs=_split_outputs),
    contract=Contract(
        invariants=_split_invariants,
        consume=_split_consumed,
        diagnose=diagnose_metadata,
        may_alias=frozenset(f"[].{name}" for name in _VIEWS),
        may_sync=has_logits,
    ),
    bench=Bench(cases=_split_timed),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (_make_metadata_with_slice, split_attn_metadata)
