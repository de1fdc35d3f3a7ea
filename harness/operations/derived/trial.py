"""Steps tried on an object of the reference, whose results later steps take as arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from hypothesis import strategies as st

from attnproof.harness.model.call import Call
from attnproof.harness.operations.derived.params import Parameter, constant_limits, key_of
from attnproof.reference.definition.definition import Argument, Definition
from attnproof.reference.definition.roles import INTEGERS, Array, Int
from attnproof.reference.interface import MetadataError

_MOST_ELEMENTS = 64
"""Elements of a result that later steps take."""
_SMALL = 6
"""Numbers above the least one that are drawn more often: a few steps use up what they count."""
Step = dict[str, Any]


class Trial:
    """An object of the reference, on which the steps of a case are called as they are chosen."""

    def __init__(self, definition: Definition, prepare: Callable[[list[Step]], Call]) -> None:
        self._definition, self._prepare = definition, prepare
        self.steps: list[Step] = []
        """Steps that the reference accepts."""
        self.results: list[list[int]] = []
        """Integers of each result, those of the last step last."""
        self.unused: list[list[int]] = []
        """Results without the elements that a later step took."""
        self.is_refused = False
        """True if the reference refuses the arguments of its instantiation."""
        self._broken = False
        self._live: Any = None
        call = prepare([])
        self._numbers = [value for value in (call.args | call.kwargs).values() if _is_int(value)]
        try:
            self._live = definition.function(*call.args.values(), **call.kwargs)
        except MetadataError:
            self.is_refused = True
        except Exception:
            self._broken = True  # a mistake of the reference, which the call on the case names

    def take(self, step: Step) -> bool:
        """Call a step; return False if the reference refuses it."""
        if self._broken:
            return True
        ((name, args, kwargs),) = self._prepare([step]).facts.steps
        try:
            returned = getattr(self._live, name)(*args.values(), **kwargs)
        except MetadataError:
            return False
        except Exception:
            # A mistake of the reference: the call on the case names it, with the case.
            self._broken = True
            self.steps.append(step)
            return True
        self.steps.append(step)
        method = next(m for m in self._definition.methods if m.name == name)
        written = [(args | kwargs)[a.name] for a in method.arguments if a.is_written]
        arrays = [value for value in (args | kwargs).values() if not _is_int(value)]
        taken = {element for value in arrays for elements in _of(value) for element in elements}
        results = [elements for value in (returned, *written) for elements in _of(value)]
        left = ([element for element in each if element not in taken] for each in self.unused)
        self.unused = [*filter(None, left), *results]
        self.results += results
        return True

    @property
    def numbers(self) -> list[int]:
        """Integers of the instantiation and of the state."""
        state = (getattr(self._live, name, None) for name in self._definition.state)
        return [*self._numbers, *(value for value in state if _is_int(value))]


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _of(value: Any) -> Iterator[list[int]]:
    """Yield the integers of each array and number that a step returns or takes."""
    if isinstance(value, tuple):
        for part in value:
            yield from _of(part)
    elif _is_int(value):
        yield [value]
    elif isinstance(value, torch.Tensor) and value.dtype in INTEGERS and value.numel():
        yield value.flatten()[:_MOST_ELEMENTS].tolist()


def takes_results(argument: Argument) -> bool:
    """True for an array of integers that follows from nothing else."""
    declared = argument.declared
    is_free = isinstance(declared, Array) and not declared.follows_batch and declared.is_read
    return is_free and isinstance(declared, Array) and declared.role == "numbers"


def with_elements(step: Step, argument: Argument, elements: list[int]) -> Step:
    """Return the step with the elements in an array, those that it may have."""
    declared = argument.declared
    assert isinstance(declared, Array)
    low, high = constant_limits(declared)
    allowed = [element for element in elements if low <= element <= high]
    allowed = list(dict.fromkeys(allowed)) if declared.distinct else allowed
    if not allowed:
        return step
    size = declared.sizes[0] if len(declared.sizes) == 1 else None
    key = f"size_{size.axis}" if size is not None else ""
    if size is not None and key in step:
        count = max(0, len(allowed) - size.more) // size.times
        step = step | {key: count}
    return step | {key_of(argument): allowed}


def drawn_step(
    draw: st.DrawFn, trial: Trial, method: Definition, parameters: dict[str, Parameter]
) -> Step:
    """Draw the parameters of a step, half of its arrays from the results of earlier ones."""
    step = {name: draw(parameter.drawn) for name, parameter in parameters.items()}
    for key, declared in numbers_among(method, step):
        step[key] = draw(st.just(step[key]) | near_numbers(declared, trial.numbers))
    has_results = bool(trial.results) and draw(st.booleans())
    return with_drawn_results(draw, trial, method, step) if has_results else step


def with_drawn_results(draw: st.DrawFn, trial: Trial, method: Definition, step: Step) -> Step:
    """Return the step with results of earlier ones in each array that takes them, and number."""
    elements = [element for result in trial.unused for element in result][:_MOST_ELEMENTS]
    for key, declared in numbers_among(method, step):
        step = step | {key: draw(st.just(step[key]) | near_numbers(declared, elements))}
    for argument in filter(takes_results, method.arguments):
        step = with_elements(step, argument, draw(_elements(trial)))
    return step


def numbers_among(definition: Definition, params: dict[str, Any]) -> Iterator[tuple[str, Int]]:
    """Yield the parameters that are an integer, with their declarations."""
    for argument in definition.arguments:
        declared, key = argument.declared, key_of(argument)
        if key in params and isinstance(declared, Int) and isinstance(declared.least, int):
            yield key, declared


def near_numbers(declared: Int, numbers: list[int]) -> st.SearchStrategy[int]:
    """Return small numbers and those beside others, inside the limits of a declaration."""
    low, high = constant_limits(declared)
    near = {number + off for number in numbers for off in (-1, 0, 1)}
    allowed = sorted(number for number in near if low <= number <= high)
    small = st.integers(low, min(high, low + _SMALL))
    return small | st.sampled_from(allowed) if allowed else small


def _elements(trial: Trial) -> st.SearchStrategy[list[int]]:
    """Return whole results, those that no step took twice as often, and parts of several."""
    unused = trial.unused
    whole = st.sampled_from([*unused, *trial.results])
    several = [element for elements in unused or trial.results for element in elements]
    return whole | whole.flatmap(st.permutations) | st.lists(st.sampled_from(several), unique=True)
