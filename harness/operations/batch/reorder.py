"""Operation of SPEC.md sections 2 and 11: moving decodes to the front of a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from attnproof.harness.model.call import Call, Facts, Free, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Bench, Contract, Inputs, Operation
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.faults import wrong_type, wrong_value
from attnproof.harness.operations.shared.params import Numbers, Params, Positive

REORDER = "reorder_batch_to_split_decodes_and_prefills"
_REGIONS = ("decode", "short extend", "long extend", "prefill")
PROGRESS_FIELDS = ("num_computed_tokens_cpu", "num_prompt_tokens")
"""Arrays of a batch that vLLM reads since 0.11 and since 0.32."""
_STALE = 0x5A5A
_QUERY_LENS = st.lists(st.sampled_from((1, 2, 3, 0, 5, 40)), max_size=10)
_THRESHOLD = st.sampled_from((1, 2, 3, 8))
_PROGRESS = st.sampled_from((0, 7, 1, 8, 30))
_HAS_PROGRESS = st.integers(0, 2)


class _Params(Params):
    query_lens: Numbers
    """Scheduled tokens of each request."""
    decode_threshold: Positive
    computed_lens: Numbers | None = None
    """Computed tokens of each request, None for a batch that has no such field."""
    prompt_lens: Numbers | None = None
    """Tokens of the prompt of each request, None for a batch that has no such field."""


def _problem(case: Case) -> str:
    rows, computed = len(case.params["query_lens"]), case.params.get("computed_lens")
    prompts = case.params.get("prompt_lens")
    if prompts is not None and computed is None:
        return "prompt_lens: given without computed_lens"
    short = next((v for v in (computed, prompts) if v is not None and len(v) != rows), None)
    return "" if short is None else f"{len(short)} lengths for {rows} requests"


class Engine:
    """Stand-in for an engine's input batch, which records what is read, and after which swap.

    Its arrays of computed and prompt tokens, if it has them, are longer than its rows.
    """

    num_computed_tokens_cpu: np.ndarray
    num_prompt_tokens: np.ndarray

    def __init__(
        self,
        query_lens: list[int],
        computed_lens: list[int] | None = None,
        prompt_lens: list[int] | None = None,
    ) -> None:
        self.rows = [f"request-{row}" for row in range(len(query_lens))]
        self.before = tuple(self.rows)
        """Request ids in row order before the first swap."""
        scheduled = list(zip(self.rows, query_lens, strict=True))
        # The order of a schedule is not that of the rows, as requests move.
        self.state = dict(scheduled[::-1] if len(scheduled) % 2 else scheduled)
        self.swaps: list[tuple[int, int]] = []
        self.read_after_swap = False
        self.progress = {
            name: np.array([*lengths, *[_STALE] * 3], np.int32)
            for name, lengths in zip(PROGRESS_FIELDS, (computed_lens, prompt_lens), strict=True)
            if lengths is not None
        }
        self.read: set[str] = set()
        """Names of the arrays of progress that were read."""

    def __getattr__(self, name: str) -> np.ndarray:
        """Return an array of progress, which is an attribute of a batch that has it only."""
        array: np.ndarray | None = self.__dict__.get("progress", {}).get(name)
        if array is None:
            raise AttributeError(f"'Engine' object has no attribute {name!r}")
        self.read.add(name)
        return array

    @property
    def has_progress(self) -> bool:
        """True if it has the computed tokens of its requests."""
        return bool(self.progress)

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
        for array in self.progress.values():
            array[[i, j]] = array[[j, i]]


def _case(
    query_lens: list[int],
    decode_threshold: int,
    computed_lens: list[int] | None = None,
    prompt_lens: list[int] | None = None,
) -> Case:
    params = {"query_lens": query_lens, "decode_threshold": decode_threshold}
    progress = {"computed_lens": computed_lens, "prompt_lens": prompt_lens}
    return Case(REORDER, None, params | {k: v for k, v in progress.items() if v is not None})


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    query_lens, threshold = draw(_QUERY_LENS), draw(_THRESHOLD)
    lengths = st.lists(_PROGRESS, min_size=len(query_lens), max_size=len(query_lens))
    progress = (draw(lengths) for _ in range(draw(_HAS_PROGRESS)))
    return _case(query_lens, threshold, *progress)


def _boundaries() -> Iterator[tuple[str, Case]]:
    yield "no requests", _case([], 1)
    yield "in order already", _case([1, 1, 7, 9], 1)
    yield "exactly reversed", _case([9, 7, 1, 1], 1)
    yield "alternating", _case([5, 1] * 6, 1)
    yield "all decodes", _case([1] * 5, 1)
    yield "all prefills", _case([4] * 5, 1)
    yield "at the threshold", _case([3, 2, 4, 2, 3], 3)
    yield "many requests", _case([(7 * row) % 5 for row in range(300)], 2)
    yield "tokens beyond 16 bits", _case([2**15 + 5, 1, 2**16 - 1, 1], 1)
    turns, lengths = [3, 0, 2, 1], [9, 1, 9, 1]
    yield "prompts before continued ones", _case(lengths, 1, [0, 4, 5, 0])
    for shift in range(4):
        mixed = [turns[(row + shift) % 4] for row in range(12)]
        yield (
            f"all four regions, shifted by {shift}",
            _case(
                [1 if region in (0, 1) else 9 for region in mixed],
                1,
                [0 if region == 3 else 5 for region in mixed],
                [6 if region == 1 else 5 for region in mixed],
            ),
        )
    yield "first token of a prompt", _case([1, 1], 1, [0, 5], [1, 5])
    lengths, progress = [1, 2, 3] * 100, [0, 1, 2] * 100
    yield "many requests in four regions", _case(lengths, 2, progress, [1] * 300)


def _steps(batch: Batch) -> Iterator[Case]:
    first = batch.num_tokens % max(1, batch.num_requests)
    turned = [*batch.query_lens[first:], *batch.query_lens[:first]]
    yield _case(turned, 1 + batch.num_tokens % 2)
    if batch.prompt_lens is not None:
        computed, prompts = list(batch.computed_lens), list(batch.prompt_lens)
        yield _case(list(batch.query_lens), 1, computed, prompts)


def _timed(batch: Batch) -> Iterator[Case]:
    """Yield the batch with its last eighth moved to the front."""
    # The last requests are most likely prefills.
    moved = -(-batch.num_requests // 8)
    front, rest = batch.query_lens[-moved:], batch.query_lens[:-moved]
    yield _case([*front, *rest], 1)


@dataclass(frozen=True, kw_only=True)
class _EngineFacts(Facts):
    engine: Engine
    regions: dict[str, int]


def _prepare(case: Case, _pattern: int, _device: str) -> Call:
    params = case.params
    engine = Engine(params["query_lens"], params.get("computed_lens"), params.get("prompt_lens"))
    return Call(
        {
            "input_batch": engine,
            "scheduler_output": engine,
            "decode_threshold": params["decode_threshold"],
        },
        plain={"num_scheduled_tokens": engine.state},
        facts=_EngineFacts(engine=engine, regions=regions_of(params, params["decode_threshold"])),
    )


def _outputs(call: Call, result: Any) -> Outputs:
    return {"moved": result, "order": order_of(call.facts.engine)}


def order_of(engine: Engine) -> Free:
    """Return the order of the rows and what led to it, which is free within `order_violations`."""
    return Free(
        req_ids=list(engine.rows),
        swaps=len(engine.swaps),
        read_after_swap=engine.read_after_swap,
        read=sorted(engine.read),
    )


def regions_of(params: Mapping[str, Any], threshold: int) -> dict[str, int]:
    """Return the region of each request: decode, short extend, long extend, prefill."""
    computed, prompts = params.get("computed_lens"), params.get("prompt_lens")
    regions = {}
    for row, query_len in enumerate(params["query_lens"]):
        short = query_len <= threshold
        region = 0 if short else 3
        if computed is not None and computed[row]:
            in_prompt = prompts is not None and computed[row] < prompts[row]
            region = int(in_prompt) if short else 2
        elif prompts is not None:
            region = 3
        regions[f"request-{row}"] = region
    return regions


def order_violations(regions: Mapping[str, int], order: Free) -> Iterator[Violation]:
    """Check that rows stand in the order of their regions, after few swaps (section 2)."""
    rows = order.values["req_ids"]
    if sorted(rows) != sorted(regions):
        yield Violation("order", "loses or doubles a request")
        return
    after = [regions[req_id] for req_id in rows]
    wrong = next((pair for pair in pairwise(after) if pair[0] > pair[1]), None)
    if wrong is not None:
        yield Violation("order", f"has a {_REGIONS[wrong[1]]} behind a {_REGIONS[wrong[0]]}")
    if order.values["read_after_swap"]:
        yield Violation("order", "follows from rows that were read after the first swap")
    before = list(regions.values())
    swaps = order.values["swaps"]
    if swaps and before == sorted(before):
        yield Violation("order", "moves rows that are in order")
    elif swaps >= max(1, len(rows)):
        yield Violation("order", "takes more swaps than there are rows")


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    yield from order_violations(call.facts.regions, outputs["order"])


def _fewer_rows(field: str, param: str) -> Fault:
    """Return the fault of progress that the last row lacks."""

    def change(batch: Any) -> Any:
        fields = {name: getattr(batch, name) for name in PROGRESS_FIELDS if hasattr(batch, name)}
        fields[field] = fields[field][: len(batch.req_ids) - 1]
        return SimpleNamespace(req_ids=batch.req_ids, swap_states=batch.swap_states, **fields)

    return Fault("input_batch", change, field, applies=lambda case: bool(case.params.get(param)))


reorder_batch_to_split_decodes_and_prefills = Operation(
    name=REORDER,
    section="2",
    summary="moves the decodes to the front with few swaps",
    inputs=Inputs(
        params=_Params,
        problem=_problem,
        has_batch=False,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_steps,
        any_slots=True,
        faults={
            "threshold of 0": wrong_value("decode_threshold", 0),
            "threshold of another type": wrong_type("decode_threshold"),
            **{
                f"request that is not scheduled{words}": Fault(
                    "scheduler_output",
                    lambda _, kind=kind: SimpleNamespace(num_scheduled_tokens=kind()),
                    "num_scheduled_tokens",
                    applies=lambda case: bool(case.params["query_lens"]),
                )
                for words, kind in (("", dict), (", in a Counter", Counter))
            },
            "computed tokens of fewer rows": _fewer_rows(
                "num_computed_tokens_cpu", "computed_lens"
            ),
            "prompt tokens of fewer rows": _fewer_rows("num_prompt_tokens", "prompt_lens"),
        },
    ),
    call=FunctionCall(prepare=_prepare, outputs=_outputs),
    contract=Contract(invariants=_invariants),
    bench=Bench(cases=_timed),
)

OPERATIONS = (reorder_batch_to_split_decodes_and_prefills,)
