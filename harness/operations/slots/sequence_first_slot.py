"""Operation of SPEC.md section 5: the first position of a sequence that gets a slot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.model.operation import Bench, Contract, Inputs, Operation
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.faults import wrong_type, wrong_value
from attnproof.harness.operations.shared.metadata import returned
from attnproof.harness.operations.shared.params import Params, Positive

NAME = "compute_slot_mapping_start_idx"
_ARGS = ("is_prompt", "query_len", "context_len", "sliding_window")


class _Params(Params):
    is_prompt: bool
    query_len: Count
    context_len: Count
    sliding_window: Positive | None


def _case(*values: Any) -> Case:
    return Case(NAME, None, dict(zip(_ARGS, values, strict=True)))


def _cases() -> st.SearchStrategy[Case]:
    lengths = st.integers(0, 100)
    return st.builds(_case, st.booleans(), lengths, lengths, st.none() | st.integers(1, 60))


def _boundaries() -> Iterator[tuple[str, Case]]:
    for is_prompt in (True, False):
        yield f"no window, prompt {is_prompt}", _case(is_prompt, 9, 0, None)
        for query_len in (3, 4, 5):
            yield (
                f"query {query_len} against a window of 4, prompt {is_prompt}",
                _case(is_prompt, query_len, 2, 4),
            )
    yield "no tokens", _case(True, 0, 0, 1)


def _steps(batch: Batch) -> Iterator[Case]:
    if batch.num_requests:
        query_len, context_len = batch.query_lens[-1], batch.computed_lens[-1]
        yield _case(query_len > 1, query_len, context_len, 1 + batch.num_tokens // 2)


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    is_prompt, query_len, window = call["is_prompt"], call["query_len"], call["sliding_window"]
    kept = query_len - outputs["result"]
    if kept != (min(query_len, window) if is_prompt and window else query_len):
        yield Violation("result", "keeps another number of tokens than the window has")


compute_slot_mapping_start_idx = Operation(
    name=NAME,
    section="5",
    summary="first position of a sequence that gets a slot",
    inputs=Inputs(
        params=_Params,
        has_batch=False,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_steps,
        faults={
            "negative query": wrong_value("query_len", -1),
            "negative context": wrong_value("context_len", -1),
            "window of 0": wrong_value("sliding_window", 0),
            "query of another type": wrong_type("query_len"),
            "prompt of another type": wrong_type("is_prompt"),
        },
    ),
    call=FunctionCall(
        prepare=lambda case, _pattern, _device: Call({name: case.params[name] for name in _ARGS}),
        outputs=returned,
    ),
    contract=Contract(invariants=_invariants),
    bench=Bench(cases=lambda batch: _steps(batch) if batch.num_requests == 1 else ()),
)

OPERATIONS = (compute_slot_mapping_start_idx,)
