"""Calls, faults and checks that the functions of a runner's step have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.faults import faults_of
from attnproof.harness.operations.runner.step import (
    StepFacts,
    StepParams,
    problem,
    step_boundaries,
    step_cases,
    step_facts,
    step_of_batch,
    unreal,
)
from attnproof.reference.checks import runner_inputs as conditions
from attnproof.reference.definition.definition import Definition, definition_of
from attnproof.reference.definition.roles import Array

Expect = Callable[[StepFacts], Iterator[tuple[str, np.ndarray, str]]]
"""Function from a step to outputs: field, right values, and what is wrong with others."""


def _arrays(definition: Definition) -> list[str]:
    return [a.name for a in definition.arguments if isinstance(a.declared, Array)]


def _written(definition: Definition) -> list[str]:
    declared = {argument.name: argument.declared for argument in definition.arguments}
    return [name for name in _arrays(definition) if getattr(declared[name], "written", False)]


def _prepare(
    definition: Definition,
    sources: Mapping[str, str],
    scalars: Callable[[StepFacts], dict[str, Any]],
    case: Case,
    pattern: int,
    device: str,
) -> Call:
    stale = STALE_PATTERNS[pattern]
    facts = step_facts(case, stale)
    gap = case.params["spare"]
    arrays = {name: facts.before[sources.get(name, name)] for name in _arrays(definition)}
    arena = Arena([_piece(name, values, gap) for name, values in arrays.items()], stale, device)
    values = arena.tensors | scalars(facts)
    arguments = {argument.name: values[argument.name] for argument in definition.arguments}
    written = frozenset(_written(definition))
    return Call(arguments, arena=arena, written=written, facts=facts)


def _piece(name: str, values: np.ndarray, gap: int) -> Piece:
    """Return a tensor that is dense in its last dimension, with a gap between wide rows."""
    if values.ndim == 1:
        return Piece(name, values, False, (1,))
    row = values.shape[1] + (gap if values.shape[1] > 1 else 0)
    return Piece(name, values, False, (max(1, row), 1))


def _outputs(results: Callable[[Call, Any], Outputs], call: Call, result: Any) -> Outputs:
    return results(call, result) | {name: call[name] for name in sorted(call.written)}


def _named_results(definition: Definition, _call: Call, result: Any) -> Outputs:
    names = [output.name for output in definition.results]
    return dict(zip(names, result if len(names) > 1 else (result,), strict=False))


def _violations(expect: Expect, call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Yield each field that differs from what the step's numbers require."""
    for field, right, text in expect(call.facts):
        output = outputs[field]
        values = output.cpu().numpy() if isinstance(output, torch.Tensor) else np.asarray(output)
        if values.shape != right.shape:
            yield Violation(field, "has another shape", f"{values.shape}, not {right.shape}")
        elif (wrong := np.argwhere(values.astype(np.int64) != right)).size:
            place = tuple(int(index) for index in wrong[0])
            detail = f"{field}{list(place)} is {values[place]}, not {right[place]}"
            yield Violation(field, text, detail)


def _diagnose(expect: Expect, call: Call, place: Place, expected: Any, got: Any) -> str:
    """Return what is wrong with the field, "" for another shape or dtype."""
    if not (isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor)):
        return ""
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return ""
    if expected.ndim == 1 and torch.equal(expected.sort().values, got.sort().values):
        return "the value of another row"
    return next((text for field, _, text in expect(call.facts) if field == place.field), "")


def step_operation(
    reference: Callable[..., Any],
    summary: str,
    *,
    expect: Expect,
    sources: Mapping[str, str] | None = None,
    scalars: Callable[[StepFacts], dict[str, Any]] = lambda _facts: {},
    results: Callable[[Call, Any], Outputs] | None = None,
    faults: Mapping[str, Fault] | None = None,
    dummies: bool = False,
    consumed: bool = False,
) -> Operation:
    """Return the operation of a function of a step.

    `sources` gives a tensor of another name in the step, `scalars` what is no tensor, or None in
    the place of one. `results` are outputs that it returns. `consumed`: True if `expect` says
    what a model or a kernel reads, so that the consumer judges it.
    """
    definition = definition_of(reference)
    assert definition is not None
    name, judge = definition.name, partial(_violations, expect)
    prepare = partial(_prepare, definition, sources or {}, scalars)
    aliases = [result.name for result in definition.results if result.declared.may_alias]
    return Operation(
        name=name,
        section="13",
        summary=summary,
        inputs=Inputs(
            params=StepParams,
            problem=problem,
            unreal=partial(unreal, dummies=dummies),
            has_batch=False,
            cases=partial(step_cases, name),
            boundaries=partial(step_boundaries, name),
            from_batch=partial(step_of_batch, name),
            faults=faults_of(definition, prepare) | _row_faults(definition) | dict(faults or {}),
        ),
        call=FunctionCall(
            prepare=prepare,
            outputs=partial(_outputs, results or partial(_named_results, definition)),
        ),
        contract=Contract(
            invariants=None if consumed else judge,
            consume=judge if consumed else None,
            may_alias=frozenset((*_written(definition), *aliases)),
            diagnose=partial(_diagnose, expect),
        ),
        bench=Bench(cases=partial(step_of_batch, name)),
        built_in=BuiltIn(kernels=True),
    )


def has_live_rows(case: Case) -> bool:
    """True if a row has a request."""
    return any(row["slot"] >= 0 for row in case.params["rows"])


def has_rows(case: Case) -> bool:
    """True if the step has a row."""
    return bool(case.params["rows"])


def has_tokens(case: Case) -> bool:
    """True if the step has a token."""
    return any(row["query"] for row in case.params["rows"])


def set_live(values: torch.Tensor, mapping: torch.Tensor, value: int) -> torch.Tensor:
    """Return a copy in which all slots of rows have `value`."""
    changed = values.clone()
    changed[mapping[mapping >= 0].long()] = value
    return changed


def _negative(field: str) -> Fault:
    return Fault(
        field,
        lambda values, mapping: set_live(values, mapping, -1),
        applies=has_live_rows,
        reads=("idx_mapping",),
        cpu_only=True,
    )


_OF_CONDITIONS: dict[Callable[..., Any], dict[str, Fault]] = {
    conditions.require_one_row_a_slot: {
        "slot of two rows": Fault(
            "idx_mapping",
            torch.zeros_like,
            applies=lambda case: len(case.params["rows"]) > 1,
            cpu_only=True,
        )
    },
    conditions.require_computed: {"negative computed tokens": _negative("num_computed_tokens")},
    conditions.require_prompts: {"negative prompt": _negative("prefill_len")},
}


def _row_faults(definition: Definition) -> dict[str, Fault]:
    """Return the faults of rows, their slots' lengths and offsets, for the arguments there are."""
    names, faults = _arrays(definition), dict[str, Fault]()
    for condition in definition.requires:
        faults |= _OF_CONDITIONS.get(condition, {})
    if len(names) > 2:  # else there are only rows and logits: no tensor tells the number of slots
        faults["slot beyond the slots"] = Fault(
            "idx_mapping",
            lambda mapping: torch.full_like(mapping, 2**30),
            applies=has_rows,
            cpu_only=True,
        )
    for field in ("query_start_loc", "cu_num_logits"):
        if field in names:
            faults |= _offset_faults(field)
    return faults


def _offset_faults(field: str) -> dict[str, Fault]:
    def has_offsets(case: Case) -> bool:
        return bool(case.params["offsets"])

    return {
        f"{field} that does not start at 0": Fault(
            field, lambda starts: starts + 1, applies=has_offsets, cpu_only=True
        ),
        f"{field} that falls": Fault(
            field,
            lambda starts: torch.cat([starts[:1], starts[1:].abs().neg() - 1]),
            applies=lambda case: has_rows(case) and has_offsets(case),
            cpu_only=True,
        ),
    }


def concatenated(parts: Iterable[np.ndarray]) -> np.ndarray:
    """Return the parts one behind the other, int64."""
    arrays = [np.asarray(part, dtype=np.int64) for part in parts]
    return np.concatenate([np.zeros(0, dtype=np.int64), *arrays])
