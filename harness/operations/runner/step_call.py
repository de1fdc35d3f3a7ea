"""Calls, faults and checks that the functions of a runner's step have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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
from attnproof.harness.operations.shared.faults import wrong_type

Expect = Callable[[StepFacts], Iterator[tuple[str, np.ndarray, str]]]
"""Function from a step to outputs: field, right values, and what is wrong with others."""


def _prepare(
    tensors: dict[str, str],
    scalars: Callable[[StepFacts], dict[str, Any]],
    order: tuple[str, ...],
    written: frozenset[str],
    case: Case,
    pattern: int,
    device: str,
) -> Call:
    stale = STALE_PATTERNS[pattern]
    facts = step_facts(case, stale)
    gap = case.params["spare"]
    pieces = [_piece(name, facts.before[source], gap) for name, source in tensors.items()]
    arena = Arena(pieces, stale, device)
    given = arena.tensors | scalars(facts)
    return Call({name: given[name] for name in order}, arena=arena, written=written, facts=facts)


def _piece(name: str, values: np.ndarray, gap: int) -> Piece:
    """Return a tensor that is dense in its last dimension, with a gap between wide rows."""
    if values.ndim == 1:
        return Piece(name, values, False, (1,))
    row = values.shape[1] + (gap if values.shape[1] > 1 else 0)
    return Piece(name, values, False, (max(1, row), 1))


def _outputs(
    written: tuple[str, ...],
    results: Callable[[Call, Any], Outputs],
    call: Call,
    result: Any,
) -> Outputs:
    return results(call, result) | {name: call[name] for name in written}


def _violations(expect: Expect, call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Yield each field that differs from what the step's numbers require."""
    for field, right, text in expect(call.facts):
        found = outputs[field]
        values = found.cpu().numpy() if isinstance(found, torch.Tensor) else np.asarray(found)
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
    name: str,
    summary: str,
    *,
    order: tuple[str, ...],
    tensors: dict[str, str],
    expect: Expect,
    written: tuple[str, ...] = (),
    scalars: Callable[[StepFacts], dict[str, Any]] = lambda _facts: {},
    results: Callable[[Call, Any], Outputs] = lambda _call, _result: {},
    returned: tuple[str, ...] = (),
    faults: dict[str, Fault],
    dummies: bool = False,
    consumed: bool = False,
) -> Operation:
    """Return the operation of a function of a step.

    `order` are its parameters; `tensors` gives those that are tensors the name of a tensor of
    the step, `scalars` the values of the others. `results` are outputs that it returns, of
    which those in `returned` may be inputs. `consumed`: True if `expect` says what a model
    or a kernel reads, so that the consumer judges it.
    """
    judge = partial(_violations, expect)
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
            faults=_row_faults(order, tensors) | faults,
        ),
        call=FunctionCall(
            prepare=partial(_prepare, tensors, scalars, order, frozenset(written)),
            outputs=partial(_outputs, written, results),
        ),
        contract=Contract(
            invariants=None if consumed else judge,
            consume=judge if consumed else None,
            may_alias=frozenset((*written, *returned)),
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


def _row_faults(order: tuple[str, ...], tensors: dict[str, str]) -> dict[str, Fault]:
    """Return the faults of rows and offsets that every function must refuse."""
    faults = {
        "slot below -1": Fault(
            "idx_mapping",
            lambda mapping: torch.full_like(mapping, -2),
            applies=has_rows,
            cpu_only=True,
        ),
        "slot beyond the slots": Fault(
            "idx_mapping",
            lambda mapping: torch.full_like(mapping, 2**30),
            applies=has_rows,
            cpu_only=True,
        ),
        "float rows": Fault("idx_mapping", torch.Tensor.float),
        "2-D rows": Fault("idx_mapping", lambda mapping: mapping[None]),
        "rows of another type": wrong_type("idx_mapping"),
    }
    if len(tensors) == 2:  # only rows and logits: no tensor tells the number of slots
        del faults["slot beyond the slots"]
    for field in ("query_start_loc", "cu_num_logits"):
        if field in order:
            faults |= _offset_faults(field)
    for field in ("num_computed_tokens", "prefill_len", "all_token_ids", "seq_lens", "input_ids"):
        if field in order:
            faults[f"int64 {field}"] = Fault(field, torch.Tensor.long)
    return faults


def _has_offsets(case: Case) -> bool:
    return bool(case.params["offsets"])


def _offset_faults(field: str) -> dict[str, Fault]:
    return {
        f"{field} of fewer rows": Fault(
            field,
            lambda starts, mapping: starts[: len(mapping)],
            applies=_has_offsets,
            given=("idx_mapping",),
        ),
        f"{field} that does not start at 0": Fault(
            field, lambda starts: starts + 1, applies=_has_offsets, cpu_only=True
        ),
        f"{field} that falls": Fault(
            field,
            lambda starts: torch.cat([starts[:1], starts[1:].abs().neg() - 1]),
            applies=lambda case: has_rows(case) and _has_offsets(case),
            cpu_only=True,
        ),
        f"float {field}": Fault(field, torch.Tensor.float, applies=_has_offsets),
    }


def concatenated(parts: Iterable[np.ndarray]) -> np.ndarray:
    """Return the parts one behind the other, int64."""
    found = [np.asarray(part, dtype=np.int64) for part in parts]
    return np.concatenate([np.zeros(0, dtype=np.int64), *found])
