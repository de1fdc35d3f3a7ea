"""Operation of SPEC.md section 11: a batch split into decodes, extends and prefills.

Bug classes: a bound above the threshold without a query above it, counts that are tensors,
padded rows behind prefills.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import msgspec
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.consumer.batch import expected_tokens
from attnproof.harness.consumer.parts import region_violations
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.operation import Bench, Contract, Inputs, Operation
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.faults import faults_of
from attnproof.harness.operations.shared.metadata import prepare_metadata
from attnproof.harness.operations.shared.params import Params, Positive
from attnproof.reference import split_decodes_prefills_and_extends as reference

NAME = "split_decodes_prefills_and_extends"
_THRESHOLD = st.sampled_from((1, 2, 3, 5, 8))
_ORDERED = st.sampled_from((True, True, False))
_COUNTS = (
    *("num_decodes", "num_extends", "num_prefills"),
    *("num_decode_tokens", "num_extend_tokens", "num_prefill_tokens"),
)


class _Params(Params):
    decode_threshold: Positive


def _case(batch: Batch, threshold: int = 1) -> Case:
    return Case(NAME, batch, {"decode_threshold": threshold})


def _unreal(case: Case) -> str:
    """Return why no engine makes the case, "" if one may."""
    batch, threshold = case.batch, case.params["decode_threshold"]
    assert batch is not None
    region = 0
    for query_len, computed in zip(batch.query_lens, batch.computed_lens, strict=True):
        if query_len and _region(query_len, computed, threshold) < region:
            if computed or query_len > threshold:
                return "an engine orders decodes, extends, prefills"
            region = 2  # a short prompt among the prefills, as engines of today order it
        elif query_len:
            region = _region(query_len, computed, threshold)
    return ""


def _region(query_len: int, computed: int, threshold: int) -> int:
    """Return 0 for a decode, 1 for an extend, 2 for a prefill."""
    if query_len <= threshold:
        return 0
    return 1 if computed else 2


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    batch, threshold = draw(batches(max_requests=8)), draw(_THRESHOLD)
    if draw(_ORDERED):
        lens = zip(batch.query_lens, batch.computed_lens, batch.blocks, strict=True)
        rows = sorted(lens, key=lambda row: _region(row[0], row[1], threshold))
        query_lens, computed, blocks = zip(*rows, strict=True) if rows else ((), (), ())
        fields: dict[str, Any] = {"query_lens": query_lens, "computed_lens": computed}
        batch = msgspec.structs.replace(batch, blocks=blocks, **fields)
    return _case(batch, threshold)


def _boundaries() -> Iterator[tuple[str, Case]]:
    ordered = [1, 1, 4, 3, 5, 2], [6, 2, 8, 1, 0, 0]
    mixed = make_batch(*ordered, 4)
    yield "SPEC example", _case(mixed)
    for threshold in (2, 3, 5):
        yield f"threshold {threshold}", _case(mixed, threshold)
    yield "only decodes", _case(make_batch([1, 1], [3, 4], 4))
    yield "only extends", _case(make_batch([4, 3], [3, 4], 4))
    yield "only prefills", _case(make_batch([4, 3], [0, 0], 4))
    yield "decodes and prefills", _case(make_batch([1, 3], [5, 0], 4))
    yield "decodes and extends", _case(make_batch([1, 3], [5, 2], 4))
    yield "extends and prefills", _case(make_batch([4, 3], [5, 0], 4))
    yield (
        "bound above the threshold, all below it",
        _case(make_batch([1, 1], [3, 4], 4, query_slack=3), 2),
    )
    yield "short prompt", _case(make_batch([1, 2], [0, 0], 4), 2)
    behind = make_batch([1, 4, 1, 3, 2], [6, 8, 0, 0, 0], 4)
    yield "short prompts behind an extend", _case(behind)
    yield "short prompts behind an extend, threshold 2", _case(behind, 2)
    yield "short prompt behind extends alone", _case(make_batch([4, 3, 1], [5, 2, 0], 4))
    yield "extend behind a prefill", _case(make_batch([1, 5, 3], [2, 0, 4], 4))
    yield "decode behind a prefill", _case(make_batch([5, 1], [0, 4], 4))
    padded = {"padded_requests": 2, "padded_tokens": 3}
    yield "padded rows behind decodes", _case(make_batch([1, 1], [3, 4], 4, **padded))
    yield "padded rows behind extends", _case(make_batch([1, 3], [3, 4], 4, **padded))
    yield "padded rows behind prefills", _case(make_batch([1, 3], [3, 0], 4, **padded))
    yield "no requests", _case(make_batch([], [], 4))
    yield "only padded rows", _case(make_batch([], [], 4, padded_requests=2, padded_tokens=2), 2)
    yield "idle rows with a history", _case(make_batch([0, 3, 0], [4, 0, 2], 4))
    yield "strided int64", _case(make_batch(*ordered, 4, strided=True, dtype="int64"))
    yield "int64 lengths only", _case(make_batch(*ordered, 4, dtype="int64 lengths"))
    yield "one row of many tokens", _case(make_batch([9000], [0], 16))


def _steps(batch: Batch) -> Iterator[Case]:
    yield _case(batch, 1 + batch.num_tokens % 3)


def _outputs(_call: Call, result: Any) -> Outputs:
    if not isinstance(result, tuple):
        raise TypeError("expected a tuple of six counts")
    return dict(zip(_COUNTS, result, strict=True))


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check the sums, and that the tokens are those of the counted requests."""
    metadata, counts = call.facts.metadata, [outputs[name] for name in _COUNTS]
    if not all(type(count) is int for count in counts):
        return
    if min(counts) < 0:
        yield Violation(_COUNTS[counts.index(min(counts))], "is negative")
        return
    if sum(counts[:3]) != metadata.num_reqs:
        yield Violation("num_prefills", "requests do not add up to num_reqs")
        return
    if sum(counts[3:]) != metadata.num_actual_tokens:
        yield Violation("num_prefill_tokens", "tokens do not add up to num_actual_tokens")
        return
    offsets = metadata.query_start_loc_cpu.tolist()
    ends = zip(accumulate(counts[:3]), accumulate(counts[3:]), _COUNTS[3:], strict=True)
    for rows, tokens, field in ends:
        if rows < metadata.num_reqs and tokens != offsets[rows]:
            yield Violation(field, "is not the number of tokens of the requests counted")
            return
    yield from _late_starts(call, *counts[:3])


def _late_starts(call: Call, decodes: int, extends: int, prefills: int) -> Iterator[Violation]:
    """Check that each region begins with a request of its own kind."""
    metadata, threshold = call.facts.metadata, call["decode_threshold"]
    rows = zip(
        metadata.query_start_loc_cpu.diff().tolist(),
        metadata.num_computed_tokens_cpu.tolist(),
        strict=True,
    )
    regions = [_region(query_len, computed, threshold) for query_len, computed in rows]
    if extends and regions[decodes] != 1:
        yield Violation("num_extends", "begins with a request that is no extend")
    if prefills and regions[decodes + extends] != 2:
        yield Violation("num_prefills", "begins with a request that is no prefill")


def _consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    counts = [outputs[name] for name in _COUNTS]
    expected = expected_tokens(call.facts.batch)
    yield from region_violations(expected, counts, call["decode_threshold"])


def _prepare(case: Case, pattern: int, device: str) -> Call:
    return prepare_metadata(case, pattern, device, {"common_attn_metadata": ..., **case.params})


split_decodes_prefills_and_extends = Operation(
    name=NAME,
    section="11",
    summary="counts the leading decodes, the extends behind them and the prefills",
    inputs=Inputs(
        params=_Params,
        unreal=_unreal,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_steps,
        faults=faults_of(reference, _prepare),
    ),
    call=FunctionCall(prepare=_prepare, outputs=_outputs),
    contract=Contract(invariants=_invariants, consume=_consumed),
    bench=Bench(cases=lambda batch: [_case(batch)]),
)

OPERATIONS = (split_decodes_prefills_and_extends,)
