"""Operations of SPEC.md section 2: splitting a batch into decodes and prefills."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.consumer.batch import expected_tokens
from attnproof.harness.consumer.parts import count_violations
from attnproof.harness.model.call import Call, Facts, Free, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Bench, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.metadata import (
    metadata_faults,
    prepare_metadata,
    wrong_type,
    wrong_value,
)
from attnproof.harness.operations.shared.params import Lengths, Params, Positive

SPLIT = "split_decodes_and_prefills"
REORDER = "reorder_batch_to_split_decodes_and_prefills"
_THRESHOLD = st.sampled_from((1, 2, 3, 5, 8))
_UNIFORM = st.booleans()
_COUNTS = ("num_decodes", "num_prefills", "num_decode_tokens", "num_prefill_tokens")


class _SplitParams(Params):
    decode_threshold: Positive
    require_uniform: bool


class _ReorderParams(Params):
    query_lens: Lengths
    decode_threshold: Positive


def _split_case(batch: Batch, threshold: int, uniform: bool) -> Case:
    return Case(SPLIT, batch, {"decode_threshold": threshold, "require_uniform": uniform})


@st.composite
def _split_cases(draw: st.DrawFn) -> Case:
    batch = draw(batches(max_requests=8))
    return _split_case(batch, draw(_THRESHOLD), draw(_UNIFORM))


def _split_boundaries() -> Iterator[tuple[str, Case]]:
    def decodes(query_lens: list[int], **fields: Any) -> Batch:
        return make_batch(query_lens, [3] * len(query_lens), 4, **fields)

    mixed = decodes([1, 1, 2, 5, 1])
    for threshold in (1, 2, 5):
        for uniform in (False, True):
            yield (
                f"SPEC example, threshold {threshold}, uniform {uniform}",
                _split_case(mixed, threshold, uniform),
            )
    padded = decodes([2, 2, 2], padded_requests=1, padded_tokens=2)
    yield "uniform with a padded row (K9)", _split_case(padded, 2, True)
    yield (
        "padded rows, no padded tokens (K11)",
        _split_case(decodes([1], padded_requests=1), 1, True),
    )
    graph = decodes([1, 1], padded_requests=2, padded_tokens=2)
    for uniform in (False, True):
        yield (
            f"decodes in a larger graph, uniform {uniform} (K11, K13)",
            _split_case(graph, 1, uniform),
        )
    yield "no requests", _split_case(decodes([]), 1, False)
    yield "no requests, uniform", _split_case(decodes([]), 2, True)
    yield "only padded rows", _split_case(decodes([], padded_requests=2, padded_tokens=2), 2, True)
    yield "zero-length row between decodes", _split_case(decodes([2, 0, 2]), 2, True)
    yield "decode behind a prefill", _split_case(decodes([1, 9, 1]), 1, False)
    yield "bound above the threshold", _split_case(decodes([1, 1], query_slack=3), 2, False)
    yield "first request above the threshold", _split_case(decodes([3, 2, 2]), 2, True)
    yield "one row of many tokens", _split_case(decodes([9000]), 1, False)


def _split_steps(batch: Batch) -> Iterator[Case]:
    threshold = 1 + batch.num_tokens % 3
    yield _split_case(batch, threshold, bool(batch.num_requests % 2))


def _split_invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    metadata = call.facts.metadata
    counts = [outputs[name] for name in _COUNTS]
    if not all(type(count) is int for count in counts):
        return
    if counts[0] + counts[1] != metadata.num_reqs:
        yield Violation("num_prefills", "requests do not add up to num_reqs")
    if metadata.num_reqs and counts[2] + counts[3] != metadata.num_actual_tokens:
        yield Violation("num_prefill_tokens", "tokens do not add up to num_actual_tokens")
    if min(counts) < 0:
        yield Violation(_COUNTS[counts.index(min(counts))], "is negative")
    elif _ends_early(metadata.query_start_loc_cpu.diff().tolist(), counts[0], *_options(call)):
        yield Violation("num_decodes", "takes a leading decode for a prefill")


def _ends_early(query_lens: list[int], num_decodes: int, threshold: int, uniform: bool) -> bool:
    """True if the first prefill could be one more decode.

    Attention stays correct, but the slower of the two kernels computes this request.
    """
    behind = query_lens[num_decodes:]
    if not behind or behind[0] > threshold:
        return False
    alike = num_decodes == 0 or behind[0] == query_lens[0] or not any(behind)
    return alike or not uniform


def _split_consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    counts = tuple(outputs[name] for name in _COUNTS)
    threshold, uniform = _options(call)
    yield from count_violations(
        expected_tokens(call.facts.batch), counts, threshold, uniform=uniform
    )


def _options(call: Call) -> tuple[int, bool]:
    return call["decode_threshold"], call["require_uniform"]


def _diagnose_split(call: Call, place: Place, expected: Any, got: Any) -> str:
    """Diagnose rows or tokens of graph padding that are counted wrongly."""
    if type(got) is not int:
        return ""
    if place.field in _COUNTS[2:]:
        padded = call.facts.batch.padded_tokens
        return "padded tokens miscounted" if padded == abs(expected - got) > 0 else ""
    query_lens = call.facts.metadata.query_start_loc_cpu.diff().tolist()
    empty = next((r for r, q in enumerate(reversed(query_lens)) if q), len(query_lens))
    return "zero-length (padded) rows miscounted" if empty == abs(expected - got) else ""


def _prepare_split(case: Case, pattern: int, device: str) -> Call:
    arguments = {"common_attn_metadata": ..., **case.params}
    return prepare_metadata(case, pattern, device, arguments)


def _split_outputs(_call: Call, result: Any) -> Outputs:
    if not isinstance(result, tuple):
        raise TypeError("expected a tuple of four counts")
    return dict(zip(_COUNTS, result, strict=True))


split_decodes_and_prefills = Operation(
    name=SPLIT,
    section="2",
    summary="counts the leading decodes and the prefills behind them",
    inputs=Inputs(
        params=_SplitParams,
        cases=_split_cases,
        boundaries=_split_boundaries,
        from_batch=_split_steps,
        faults={
            **metadata_faults("common_attn_metadata"),
            "threshold of 0": wrong_value("decode_threshold", 0),
            "threshold of another type": wrong_type("decode_threshold"),
            "uniform of another type": wrong_type("require_uniform"),
            "metadata of another type": wrong_type("common_attn_metadata", "metadata"),
        },
    ),
    call=FunctionCall(prepare=_prepare_split, outputs=_split_outputs),
    contract=Contract(
        invariants=_split_invariants, consume=_split_consumed, diagnose=_diagnose_split
    ),
    bench=Bench(cases=lambda batch: [_split_case(batch, 1, False)]),
)


class Engine:
    """Stand-in for an engine's input batch, which records reads after the first swap."""

    def __init__(self, query_lens: list[int]) -> None:
        self.rows = [f"request-{row}" for row in range(len(query_lens))]
        self.state = dict(zip(self.rows, query_lens, strict=True))
        self.swaps: list[tuple[int, int]] = []
        self.read_after_swap = False

    @property
    def req_ids(self) -> list[str]:
        """Request ids in row order."""
        self.read_after_swap |= bool(self.swaps)
        return self.rows

    @property
    def num_scheduled_tokens(self) -> dict[str, int]:
        """Query tokens of each request; the engine also stands in for the scheduler's output."""
        self.read_after_swap |= bool(self.swaps)
        return self.state

    def swap_states(self, i: int, j: int) -> None:
        """Exchange rows i and j."""
        self.swaps.append((i, j))
        self.rows[i], self.rows[j] = self.rows[j], self.rows[i]


def _reorder_case(query_lens: list[int], threshold: int) -> Case:
    return Case(REORDER, None, {"query_lens": query_lens, "decode_threshold": threshold})


def _reorder_cases() -> st.SearchStrategy[Case]:
    query_lens = st.lists(st.sampled_from((1, 2, 3, 0, 5, 40)), max_size=10)
    return st.builds(_reorder_case, query_lens, st.sampled_from((1, 2, 3, 8)))


def _reorder_boundaries() -> Iterator[tuple[str, Case]]:
    yield "no requests", _reorder_case([], 1)
    yield "in order already", _reorder_case([1, 1, 7, 9], 1)
    yield "exactly reversed", _reorder_case([9, 7, 1, 1], 1)
    yield "alternating", _reorder_case([5, 1] * 6, 1)
    yield "all decodes", _reorder_case([1] * 5, 1)
    yield "all prefills", _reorder_case([4] * 5, 1)
    yield "at the threshold", _reorder_case([3, 2, 4, 2, 3], 3)
    yield "many requests", _reorder_case([(7 * row) % 5 for row in range(300)], 2)


def _reorder_steps(batch: Batch) -> Iterator[Case]:
    turned = batch.query_lens[batch.num_tokens % max(1, batch.num_requests) :]
    rest = batch.query_lens[: batch.num_requests - len(turned)]
    yield _reorder_case([*turned, *rest], 1 + batch.num_tokens % 2)


def _reorder_timed(batch: Batch) -> Iterator[Case]:
    """Yield the batch with its last eighth moved to the front."""
    # The last requests are most likely prefills.
    moved = -(-batch.num_requests // 8)
    front, rest = batch.query_lens[-moved:], batch.query_lens[:-moved]
    yield _reorder_case([*front, *rest], 1)


@dataclass(frozen=True, kw_only=True)
class _EngineFacts(Facts):
    engine: Engine


def _prepare_reorder(case: Case, _pattern: int, _device: str) -> Call:
    engine = Engine(case.params["query_lens"])
    return Call(
        {
            "input_batch": engine,
            "scheduler_output": engine,
            "decode_threshold": case.params["decode_threshold"],
        },
        plain={"num_scheduled_tokens": engine.state},
        facts=_EngineFacts(engine=engine),
    )


def _reorder_outputs(call: Call, result: Any) -> Outputs:
    engine = call.facts.engine
    return {"moved": result, "order": order_of(engine)}


def order_of(engine: Engine) -> Free:
    """Return the order of the rows and what led to it, which is free within `order_violations`."""
    return Free(
        req_ids=list(engine.rows), swaps=len(engine.swaps), read_after_swap=engine.read_after_swap
    )


def order_violations(
    scheduled: Mapping[str, int], threshold: int, order: Free
) -> Iterator[Violation]:
    """Check that decodes stand first, and that rows moved by few swaps (section 2)."""
    rows = order.values["req_ids"]
    if sorted(rows) != sorted(scheduled):
        yield Violation("order", "loses or doubles a request")
        return
    decode = [scheduled[req_id] <= threshold for req_id in rows]
    if decode != sorted(decode, reverse=True):
        yield Violation("order", "has a decode behind a prefill")
    if order.values["read_after_swap"]:
        yield Violation("order", "follows from rows that were read after the first swap")
    before = [length <= threshold for length in scheduled.values()]
    swaps = order.values["swaps"]
    if swaps and before == sorted(before, reverse=True):
        yield Violation("order", "moves rows that are in order")
    elif swaps >= max(1, len(rows)):
        yield Violation("order", "takes more swaps than there are rows")


def _reorder_invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    scheduled = call.facts.engine.state
    yield from order_violations(scheduled, call["decode_threshold"], outputs["order"])


reorder_batch_to_split_decodes_and_prefills = Operation(
    name=REORDER,
    section="2",
    summary="moves the decodes to the front with few swaps",
    inputs=Inputs(
        params=_ReorderParams,
        has_batch=False,
        cases=_reorder_cases,
        boundaries=_reorder_boundaries,
        from_batch=_reorder_steps,
        faults={
            "threshold of 0": wrong_value("decode_threshold", 0),
            "threshold of another type": wrong_type("decode_threshold"),
            "request that is not scheduled": Fault(
                "scheduler_output",
                lambda _: SimpleNamespace(num_scheduled_tokens={}),
                "num_scheduled_tokens",
                applies=lambda case: bool(case.params["query_lens"]),
            ),
        },
    ),
    call=FunctionCall(prepare=_prepare_reorder, outputs=_reorder_outputs),
    contract=Contract(invariants=_reorder_invariants),
    bench=Bench(cases=_reorder_timed),
)

OPERATIONS = (split_decodes_and_prefills, reorder_batch_to_split_decodes_and_prefills)
