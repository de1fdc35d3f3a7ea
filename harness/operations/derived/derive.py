"""An `Operation` derived from a definition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import batches as usual_strategy
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Bench, BuiltIn, Inputs, Operation
from attnproof.harness.model.timing import Work
from attnproof.harness.operations.derived.arguments import Values
from attnproof.harness.operations.derived.cases import Cases, Example, Step
from attnproof.harness.operations.derived.contract import Judge, contract_of
from attnproof.harness.operations.derived.faults import faults_of
from attnproof.harness.operations.derived.params import (
    Parameter,
    form_of,
    is_slot_pool,
    mostly,
    one_of,
    params_type,
    why_unreal_layout,
)
from attnproof.harness.operations.derived.pool import needs_wide_pool
from attnproof.harness.operations.derived.steps import class_operation
from attnproof.reference.definition.definition import Definition, DefinitionError, definition_of
from attnproof.reference.definition.roles import Array, Object

_DENSE = ("numbers", "flags", "data")
"""Roles of arrays that index nothing."""
OWN = ""
"""Section of an operation that SPEC.md does not have."""


def derive(
    definition: Definition,
    *,
    section: str = OWN,
    summary: str = "",
    values: Mapping[str, Callable[[Values], Any]] | None = None,
    parameters: Mapping[str, Parameter] | None = None,
    batches: Callable[[], st.SearchStrategy[Batch]] = usual_strategy,
    adapt: Callable[[Batch], Batch] = lambda batch: batch,
    examples: Callable[[], Iterable[Example]] = tuple,
    steps: Callable[[Batch], Iterable[Step]] | None = None,
    faults: Mapping[str, Fault] | None = None,
    problem: Callable[[Case], str] = lambda _: "",
    unreal: Callable[[Case], str] = lambda _: "",
    outputs: Callable[[Call, Any], Outputs] | None = None,
    built_in: BuiltIn | None = None,
    invariants: Judge | None = None,
    **contract: Any,
) -> Operation:
    """Return the operation: its cases, arguments, faults and relations.

    What follows from no role is added by hand: `values` of arguments and axes that follow from
    others, and the `parameters` that they read; `batches` to draw, and how to `adapt` any batch
    to the operation; `examples`, cases that are always run; `steps`, the batch and the parameters
    of an engine's batch; `faults`; the `problem` of a case that cannot be run and why one is
    `unreal`; `outputs` of a result; `invariants`, and further fields of the `Contract`.
    """
    _check_objects(definition, {**definition.values, **(values or {})})
    if definition.methods:
        return replace(class_operation(definition, section), built_in=built_in or BuiltIn())
    form = form_of(definition, values, parameters)
    cases = Cases(form, batches, adapt, examples, steps, problem)

    pools = {a.name for a in definition.arguments if is_slot_pool(a)} - form.values.keys()

    # Of a table or pool a call reads a part, which no declaration says.
    is_indexed = any(
        isinstance(argument.declared, Array) and argument.declared.role not in _DENSE
        for argument in definition.arguments
    )

    def why_unreal(case: Case) -> str:
        wide = needs_wide_pool(case) if pools else ""
        return why_unreal_layout(case) or wide or unreal(case)

    return Operation(
        name=definition.name,
        section=section,
        summary=summary or definition.summary,
        inputs=Inputs(
            params=params_type(cases.parameters),
            unreal=why_unreal,
            problem=cases.problem,
            has_batch=definition.has_batch,
            whole_contexts=cases.has_entries_by_context,
            cases=cases.drawn,
            boundaries=cases.boundaries,
            from_batch=cases.from_batch,
            faults=faults_of(definition, cases.prepare) | dict(faults or {}),
        ),
        call=FunctionCall(prepare=cases.prepare, outputs=outputs or cases.outputs),
        contract=replace(contract_of(definition, invariants, form.values.keys()), **contract),
        bench=Bench(work=None if is_indexed else dense_work),
        built_in=built_in or BuiltIn(),
    )


def dense_work(call: Call, result: Any) -> Work:
    """Return the bytes of all arguments and results: a call reads or writes each element once."""
    values = [*call.args.values(), *call.kwargs.values()]
    values += result if isinstance(result, tuple) else [result]
    tensors = {value.data_ptr(): value for value in values if isinstance(value, torch.Tensor)}
    return Work(bytes=sum(tensor.nbytes for tensor in tensors.values()))


def derive_built_in(function: Any, **added: Any) -> Operation:
    """Return the operation of a reference of attnproof; see `derive`."""
    definition = definition_of(function)
    assert definition is not None, f"{function.__name__} is not defined by its signature"
    return derive(definition, **added)


def _check_objects(definition: Definition, values: Mapping[str, Any]) -> None:
    """Raise DefinitionError for an object whose value nothing says."""
    for argument in definition.every_argument:
        declared = argument.declared
        if not isinstance(declared, Object) or declared.follows_batch or argument.name in values:
            continue
        raise DefinitionError(
            f"{definition.place}: {definition.name}: no value can be derived of {argument.name}, "
            f"{declared}"
        )


__all__ = ["OWN", "Example", "Step", "derive", "derive_built_in", "mostly", "one_of"]
