"""Operation of SPEC.md sections 2 and 11: counts of decodes and prefills."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.consumer.batch import expected_tokens
from attnproof.harness.consumer.parts import count_violations
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Bench, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.faults import faults_of
from attnproof.harness.operations.shared.faults import metadata_fault
from attnproof.harness.operations.shared.metadata import batch_of, prepare_metadata
from attnproof.harness.operations.shared.params import Params, Positive
from attnproof.reference import split_decodes_and_prefills as reference

SPLIT = "split_decodes_and_prefills"
_THRESHOLD = st.sampled_from((1, 2, 3, 5, 8))
_UNIFORM = st.booleans()
_EXTENDS = st.integers(0, 2)
_COUNTS = ("num_decodes", "num_prefills", "num_decode_tokens", "num_prefill_tokens")


class _Params(Params):
    decode_threshold: Positive
    require_uniform: bool
    treat_short_extends_as_decodes: bool = True


def _tells_extends(case: Case) -> bool:
    return not case.params.get("treat_short_extends_as_decodes", True)


def _problem(case: Case) -> str:
    batch = batch_of(case)
    told_apart = batch.later and batch.prompt_lens is not None
    if told_apart or not _tells_extends(case):
        return ""
    return "treat_short_extends_as_decodes: False needs batch.later with batch.prompt_lens"


def _case(batch: Batch, threshold: int, uniform: bool, *, extends: bool = True) -> Case:
    """Return a case; without `extends`, short extends are no decodes."""
    params = {"decode_threshold": threshold, "require_uniform": uniform}
    if not extends:
        params["treat_short_extends_as_decodes"] = False
    return Case(SPLIT, batch, params)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    batch = draw(batches(max_requests=8))
    threshold, uniform = draw(_THRESHOLD), draw(_UNIFORM)
    if batch.num_requests and draw(_EXTENDS) == 0:
        rows = batch.num_requests
        missing = draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows))
        return _case(_in_prompt(batch, missing), threshold, uniform, extends=False)
    return _case(batch, threshold, uniform)


def _in_prompt(batch: Batch, missing: list[int]) -> Batch:
    """Return the batch with prompts of so many tokens more than each request has computed."""
    prompts = tuple(c + m for c, m in zip(batch.computed_lens, missing, strict=True))
    return msgspec.structs.replace(batch, later=True, subclassed=False, prompt_lens=prompts)


_ANOTHER_LENGTH_BEFORE = (
    ([2, 1, 2], [0, 0, 1]),
    ([2, 2, 1, 2], [0, 0, 0, 1]),
    ([1, 2, 3], [0, 0, 1]),
)
"""Queries, and tokens left of the prompts: a row of another length before the first prompt."""


def _boundaries() -> Iterator[tuple[str, Case]]:
    def decodes(query_lens: list[int], **fields: Any) -> Batch:
        return make_batch(query_lens, [3] * len(query_lens), 4, **fields)

    mixed = decodes([1, 1, 2, 5, 1])
    for threshold in (1, 2, 5):
        for uniform in (False, True):
            name = f"SPEC example, threshold {threshold}, uniform {uniform}"
            yield name, _case(mixed, threshold, uniform)
    padded = decodes([2, 2, 2], padded_requests=1, padded_tokens=2)
    yield "uniform with a padded row (K9)", _case(padded, 2, True)
    yield "padded rows, no padded tokens (K11)", _case(decodes([1], padded_requests=1), 1, True)
    graph = decodes([1, 1], padded_requests=2, padded_tokens=2)
    for uniform in (False, True):
        yield f"decodes in a larger graph, uniform {uniform} (K11, K13)", _case(graph, 1, uniform)
    filled = decodes([3, 2, 3], padded_tokens=1)
    yield "tokens padded to equal queries", _case(filled, 3, True)
    yield "no requests", _case(decodes([]), 1, False)
    yield "no requests, uniform", _case(decodes([]), 2, True)
    yield "only padded rows", _case(decodes([], padded_requests=2, padded_tokens=2), 2, True)
    yield "zero-length row between decodes", _case(decodes([2, 0, 2]), 2, True)
    yield "decode behind a prefill", _case(decodes([1, 9, 1]), 1, False)
    yield "bound above the threshold", _case(decodes([1, 1], query_slack=3), 2, False)
    yield "first request above the threshold", _case(decodes([3, 2, 2]), 2, True)
    yield "one row of many tokens", _case(decodes([9000]), 1, False)
    for missing in ([0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 2]):
        batch = _in_prompt(decodes([1, 1, 1, 5], padded_requests=1), missing)
        for uniform in (False, True):
            name = f"tokens left of the prompts {missing}, uniform {uniform}"
            yield name, _case(batch, 1, uniform, extends=False)
    for queries, missing in _ANOTHER_LENGTH_BEFORE:
        batch = _in_prompt(decodes(queries), missing)
        for uniform in (False, True):
            name = f"queries {queries}, tokens left of the prompts {missing}, uniform {uniform}"
            yield name, _case(batch, 2, uniform, extends=False)
    batch = _in_prompt(make_batch([1, 1], [3, 0], 4), [0, 2])
    yield "first token of a prompt (K38)", _case(batch, 1, False, extends=False)
    batch = _in_prompt(decodes([2, 2, 2]), [0, 1, 0])
    yield "a short extend in a uniform batch", _case(batch, 2, True, extends=False)


def _steps(batch: Batch) -> Iterator[Case]:
    threshold = 1 + batch.num_tokens % 3
    yield _case(batch, threshold, bool(batch.num_requests % 2))
    if batch.prompt_lens is not None:
        yield _case(batch, threshold, uniform=False, extends=False)


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
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
        return
    if call.args.get("treat_short_extends_as_decodes", True):
        prompts: list[bool] = [False] * metadata.num_reqs
    else:
        prompts = metadata.is_prefilling.tolist()
    if any(prompts[: counts[0]]):
        yield Violation("num_decodes", "takes a row in its prompt for a decode")
    elif prompts[counts[0] : counts[0] + 1] == [True]:
        return
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


def _consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    if call.facts.batch.no_slots:
        return
    counts = tuple(outputs[name] for name in _COUNTS)
    threshold, uniform = _options(call)
    yield from count_violations(
        expected_tokens(call.facts.batch), counts, threshold, uniform=uniform
    )


def _options(call: Call) -> tuple[int, bool]:
    return call["decode_threshold"], call["require_uniform"]


def _diagnose(call: Call, place: Place, expected: Any, got: Any) -> str:
    """Diagnose rows or tokens of graph padding that are counted wrongly."""
    if type(got) is not int:
        return ""
    if place.field in _COUNTS[2:]:
        padded = call.facts.batch.padded_tokens
        return "padded tokens miscounted" if padded == abs(expected - got) > 0 else ""
    metadata = call.facts.metadata
    told_apart = not call.args.get("treat_short_extends_as_decodes", True)
    more = place.field == _COUNTS[0] and expected < got
    if more and told_apart and bool(metadata.is_prefilling[expected]):
        return "a row in its prompt taken for a decode"
    query_lens = metadata.query_start_loc_cpu.diff().tolist()
    empty = next((r for r, q in enumerate(reversed(query_lens)) if q), len(query_lens))
    return "zero-length (padded) rows miscounted" if empty == abs(expected - got) else ""


def _prepare(case: Case, pattern: int, device: str) -> Call:
    return prepare_metadata(case, pattern, device, {"common_attn_metadata": ..., **case.params})


def _outputs(_call: Call, result: Any) -> Outputs:
    if not isinstance(result, tuple):
        raise TypeError("expected a tuple of four counts")
    return dict(zip(_COUNTS, result, strict=True))


def _flags(change: Callable[[Any], Any]) -> Fault:
    """Return a fault of `is_prefilling`."""

    def fields(md: Any) -> dict[str, Any]:
        return {"is_prefilling": change(md)}

    return metadata_fault("common_attn_metadata", "is_prefilling", fields, _tells_extends)


split_decodes_and_prefills = Operation(
    name=SPLIT,
    section="2",
    summary="counts the leading decodes and the prefills behind them",
    inputs=Inputs(
        params=_Params,
        problem=_problem,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_steps,
        any_slots=True,
        faults=faults_of(reference, _prepare)
        | {
            "short extends of a batch without flags": _flags(lambda _: None),
            "flags of another batch": _flags(lambda md: md.is_prefilling[:-1]),
        },
    ),
    call=FunctionCall(prepare=_prepare, outputs=_outputs),
    contract=Contract(invariants=_invariants, consume=_consumed, diagnose=_diagnose),
    bench=Bench(cases=lambda batch: [_case(batch, 1, False)]),
)


OPERATIONS = (split_decodes_and_prefills,)
