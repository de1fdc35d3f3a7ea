"""Derived operations of classes: a case instantiates the class and calls methods as its steps."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import torch
from hypothesis import assume
from hypothesis import strategies as st

from attnproof.harness.cases.batches.consistency import batch_problem
from attnproof.harness.cases.batches.real import real_batch
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena
from attnproof.harness.cases.variation.rows import with_blocks
from attnproof.harness.model.call import MISSING, Call, Facts, Outputs
from attnproof.harness.model.call_kinds import ClassCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.operation import Contract, Inputs, Operation
from attnproof.harness.model.place import of_steps
from attnproof.harness.operations.derived.arguments import Values, placement
from attnproof.harness.operations.derived.cases import usual_batches
from attnproof.harness.operations.derived.contract import diagnose_float
from attnproof.harness.operations.derived.params import (
    BATCH,
    Form,
    Layout,
    constant_limits,
    form_of,
    layout_of,
    one_of,
    parameters_of,
    usual,
    why_unreal_layout,
)
from attnproof.harness.operations.derived.trial import (
    Step,
    Trial,
    drawn_step,
    near_numbers,
    numbers_among,
    takes_results,
    with_drawn_results,
    with_elements,
)
from attnproof.harness.operations.shared.params import BlockSize, sequence_params
from attnproof.reference.definition.definition import Argument, Definition
from attnproof.reference.definition.roles import Array, Int

_DO, _STEPS = "do", "steps"
_MOST_DRAWN = 16
_BLOCK_SIZES = (4, 1, 16, 3)
_ROUNDS = 3
"""Times that a boundary calls every method."""
_WALKS, _WALK_STEPS = 6, 48
"""Boundaries with results of earlier steps, and steps that are tried in each."""


@dataclass(frozen=True, kw_only=True)
class _StepFacts(Facts):
    """The calls of a case's methods."""

    steps: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...]
    """Method, positional and keyword arguments of each step."""


class _Class:
    """A defined class, with the parameters of its instantiation and of each method."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        sizes = [argument.name for argument in definition.arguments if _is_block_size(argument)]
        self.block_size = sizes[0] if sizes else ""
        """Argument with the block size, which all batches have then."""
        self.form = form_of(
            definition,
            {name: partial(_parameter, name) for name in sizes[:1]},
            {name: one_of(BlockSize, *_BLOCK_SIZES) for name in sizes[:1]},
        )
        self.opened = parameters_of(self.form)
        self.methods = {method.name: method for method in definition.methods}
        self.forms = {name: form_of(method) for name, method in self.methods.items()}
        self.steps = {n: parameters_of(form, method=True) for n, form in self.forms.items()}

    def trial(self, params: dict[str, Any]) -> Trial:
        """Return an object of the reference, to call steps on."""
        name = self.definition.name

        def prepare(steps: list[Step]) -> Call:
            return self.prepare(Case(name, None, {**params, _STEPS: steps}), 0, "cpu")

        return Trial(self.definition, prepare)

    def case(self, params: dict[str, Any], steps: Iterable[Step]) -> Case | None:
        """Return a case with the steps that the reference accepts, None if it accepts nothing."""
        trial = self.trial(params)
        if trial.is_refused:
            return None
        for step in steps:
            trial.take(step)
        return self.case_of(params, trial)

    def case_of(self, params: dict[str, Any], trial: Trial) -> Case:
        """Return the case with the accepted steps of a trial."""
        return Case(self.definition.name, None, {**params, _STEPS: trial.steps})

    def problem(self, case: Case) -> str:
        """Return why the case cannot be run, or what the reference refuses, "" if nothing."""
        for params in (case.params, *case.params[_STEPS]):
            batch = self._batch(case, params)
            problem = "" if batch is None else batch_problem(batch)
            if problem:
                return problem
        trial = self.trial(case.params)
        if trial.is_refused:
            return "the reference refuses the arguments of its instantiation"
        accepted = all(trial.take(step) for step in case.params[_STEPS])
        return "" if accepted else "the reference refuses a step"

    def usual_step(self, method: str, **changed: Any) -> Step:
        """Return a step with the usual parameters."""
        return {_DO: method, **usual(self.steps[method]), **changed}

    def boundaries(self) -> Iterator[tuple[str, Case]]:
        """Yield every method in turn, then with each critical value of each parameter."""
        for name, case in self._boundaries():
            if case is not None:
                yield name, case

    def _boundaries(self) -> Iterator[tuple[str, Case | None]]:
        plain = usual(self.opened)
        rounds = [self.usual_step(name) for _ in range(_ROUNDS) for name in self.methods]
        yield "every method in turn", self.case(plain, rounds)
        yield "no step", self.case(plain, [])
        if any(BATCH in drawn for drawn in self.steps.values()):
            named = [(name, _encoded(batch)) for name, batch in usual_batches()]
            for name, batch in named:
                yield f"{name}, in every method", self.case(plain, self.round_of(batch) * 2)
            # A row without a token in one step would make the whole case one of no engine.
            real = [_encoded(real_batch(batch)) for _, batch in usual_batches()]
            many = [step for batch in real for step in self.round_of(batch)]
            yield "one batch after the other", self.case(plain, many)
        for name, parameter in self.opened.items():
            for value in parameter.values[1:]:
                yield f"{name} {value}", self.case({**plain, name: value}, rounds)
        for method, parameters in self.steps.items():
            for name, parameter in parameters.items():
                for value in parameter.values[1:] if name != BATCH else ():
                    step = self.usual_step(method, **{name: value})
                    yield f"{method} with {name} {value}", self.case(plain, [step, *rounds, step])
        if any(takes_results(a) for m in self.methods.values() for a in m.arguments):
            for walk in range(_WALKS):
                yield f"walk {walk + 1}, with results as arguments", self._walk(plain, walk)

    def _walk(self, params: dict[str, Any], walk: int) -> Case:
        """Return a case of many steps with results of earlier ones, and with small numbers.

        A class of few things is full, empty and, as a ring, at its end after a few steps.
        """
        chance = random.Random(walk)
        params = params | self._small_numbers(self.definition, params, walk + 2)
        trial = self.trial(params)
        for _ in range(_WALK_STEPS):
            name, method = chance.choice([*self.methods.items()])
            step = self.usual_step(name)
            step |= self._small_numbers(method, step, chance.randrange(4))
            for argument in filter(takes_results, method.arguments):
                elements = chance.choice(trial.unused) if trial.unused else []
                count = chance.choice((len(elements), chance.randrange(len(elements) + 1)))
                order = chance.choice((elements, chance.sample(elements, len(elements))))
                step = with_elements(step, argument, order[:count])
            trial.take(step)
        return self.case_of(params, trial)

    def _small_numbers(
        self, definition: Definition, params: dict[str, Any], above: int
    ) -> dict[str, int]:
        """Return each number as `above` more than its least value, if it may be that high."""
        return {
            name: min(declared.least + above, constant_limits(declared)[1])
            for name, declared in numbers_among(definition, params)
            if isinstance(declared.least, int)
        }

    def round_of(self, batch: Any) -> list[Step]:
        """Return a step of every method, with the batch where it has one."""
        changes = {name: {BATCH: batch} if BATCH in own else {} for name, own in self.steps.items()}
        return [self.usual_step(name, **changed) for name, changed in changes.items()]

    def prepare(self, case: Case, pattern: int, device: str) -> Call:
        """Return the arguments of the instantiation, and those of the steps."""
        layout = layout_of(case)
        parts = [("", self._values(case, self.form, case.params, layout, pattern))]
        for index, step in enumerate(case.params[_STEPS]):
            values = self._values(case, self.forms[step[_DO]], step, layout, pattern)
            parts.append((f"[{index}].", values))
        pieces, written = [], set()
        for prefix, values in parts:
            for argument, array in values.arrays():
                name = f"{prefix}{argument.name}"
                pieces.append(values.piece(argument, name, array))
                if isinstance(argument.declared, Array) and argument.declared.written:
                    written.add(name)
        arena = Arena(pieces, STALE_PATTERNS[pattern], device, placement(layout))
        (args, kwargs), *steps = (values.bound(arena, prefix) for prefix, values in parts)
        names = (step[_DO] for step in case.params[_STEPS])
        facts = _StepFacts(steps=tuple((n, *bound) for n, bound in zip(names, steps, strict=True)))
        return Call(args, kwargs, arena=arena, written=frozenset(written), facts=facts)

    def _values(
        self, case: Case, form: Form, params: dict[str, Any], layout: Layout, pattern: int
    ) -> Values:
        return Values(form, self._batch(case, params), params, layout, pattern)

    def _batch(self, case: Case, params: dict[str, Any]) -> Batch | None:
        """Return the batch of a step, in blocks of the size that the class has."""
        batch, size = batch_in(params), case.params.get(self.block_size)
        if batch is None or size in (None, batch.block_size):
            return batch
        # None: so many blocks that no memory holds the table.
        return with_blocks(msgspec.structs.replace(batch, block_size=size)) or batch

    def use(self, offered: Any, call: Call) -> list[dict[str, Any]]:
        """Instantiate the class and call its methods; return results and state after each one."""
        live = offered(*call.args.values(), **call.kwargs)
        states = [self._state(live)]
        for name, args, kwargs in call.facts.steps:
            fields = self._returned(name, getattr(live, name)(*args.values(), **kwargs))
            written = {argument: (args | kwargs)[argument] for argument in self._written(name)}
            states.append({key: _kept(output) for key, output in (fields | written).items()})
            states[-1] |= self._state(live)
        return states

    def _returned(self, method: str, returned: Any) -> dict[str, Any]:
        """Return the results by field: the method's name, with an index if it has several."""
        results = self.methods[method].results
        if len(results) > 1 and isinstance(returned, tuple):
            return {f"{method}[{index}]": output for index, output in enumerate(returned)}
        return {method: returned}

    def _written(self, method: str) -> list[str]:
        arguments = self.methods[method].arguments
        return [a.name for a in arguments if isinstance(a.declared, Array) and a.declared.written]

    def _state(self, live: Any) -> dict[str, Any]:
        return {name: _kept(getattr(live, name, MISSING)) for name in self.definition.state}


def _parameter(name: str, values: Values) -> Any:
    return values.params[name]


def _is_block_size(argument: Argument) -> bool:
    return isinstance(argument.declared, Int) and argument.declared.amount == "block size"


_encoded = msgspec.to_builtins
"""Return a batch as the parameter of a step."""


def with_real_batches(case: Case) -> Case:
    """Return the case with a batch of an engine in each step, itself if there are none."""
    steps = case.params.get(_STEPS)
    if not isinstance(steps, list) or not any(BATCH in step for step in steps):
        return case
    real = [
        step if (batch := batch_in(step)) is None else step | {BATCH: _encoded(real_batch(batch))}
        for step in steps
    ]
    return msgspec.structs.replace(case, params={**case.params, _STEPS: real})


def batch_in(params: dict[str, Any]) -> Batch | None:
    """Return the batch of a step, None if its method has none."""
    return msgspec.convert(params[BATCH], Batch) if BATCH in params else None


def _kept(value: Any) -> Any:
    """Return a copy: a later step may write the object."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    return value if value is MISSING else deepcopy(value)


@st.composite
def _cases(draw: st.DrawFn, defined: _Class) -> Case:
    params = {name: draw(parameter.drawn) for name, parameter in defined.opened.items()}
    for key, declared in numbers_among(defined.definition, params):
        params[key] = draw(st.just(params[key]) | near_numbers(declared, []))
    trial = defined.trial(params)
    assume(not trial.is_refused)
    methods, least = st.sampled_from(sorted(defined.methods)), draw(st.sampled_from((0, 4, 8)))
    for name in draw(st.lists(methods, min_size=least, max_size=_MOST_DRAWN)):
        drawn = drawn_step(draw, trial, defined.methods[name], defined.steps[name])
        if not trial.take({_DO: name, **drawn}) and trial.results:
            takes = with_drawn_results(draw, trial, defined.methods[name], drawn)
            trial.take({_DO: name, **takes})
    return defined.case_of(params, trial)


def _from_batch(defined: _Class, batch: Batch) -> Iterator[Case]:
    rounds = [defined.usual_step(name) for name in defined.methods]
    steps = rounds * (1 + batch.num_requests % 8) + defined.round_of(_encoded(batch))
    case = defined.case(usual(defined.opened), steps)
    if case is not None:
        yield case


def _fields(method: Definition) -> Iterator[tuple[str, Array]]:
    """Yield the output fields of a method with their declarations."""
    several = len(method.results) > 1
    for index, result in enumerate(method.results):
        yield f"{method.name}[{index}]" if several else method.name, result.declared
    for argument in method.arguments:
        if isinstance(argument.declared, Array) and argument.declared.written:
            yield argument.name, argument.declared


def _why_unreal(case: Case) -> str:
    batches = filter(None, map(batch_in, (case.params, *case.params[_STEPS])))
    return why_unreal_layout(case) or next((batch.unreal for batch in batches if batch.unreal), "")


def _outputs(_call: Call, result: Any) -> Outputs:
    return of_steps(result)


def class_operation(definition: Definition, section: str) -> Operation:
    """Return the operation of a class."""
    defined = _Class(definition)
    kinds = {n: [(k, p.kind) for k, p in steps.items()] for n, steps in defined.steps.items()}
    others = [(name, parameter.kind) for name, parameter in defined.opened.items()]
    return Operation(
        name=definition.name,
        section=section,
        summary=definition.summary,
        inputs=Inputs(
            params=sequence_params(kinds, others),
            unreal=_why_unreal,
            problem=defined.problem,
            has_batch=False,
            cases=lambda: _cases(defined),
            boundaries=defined.boundaries,
            from_batch=partial(_from_batch, defined),
        ),
        call=ClassCall(
            prepare=defined.prepare,
            outputs=_outputs,
            use=defined.use,
            methods=tuple(defined.methods),
        ),
        contract=Contract(
            diagnose=diagnose_float,
            tolerances={
                f"[].{field}": declared.tolerance
                for method in definition.methods
                for field, declared in _fields(method)
                if declared.tolerance
            },
        ),
    )
