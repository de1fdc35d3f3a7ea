"""The outputs of one case beside the reference's, for the report."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import is_dataclass
from itertools import islice
from typing import Any, TypeGuard

import msgspec
import numpy as np
import torch

from attnproof.harness.cases.layers.tolerance import beyond
from attnproof.harness.model.call import Call
from attnproof.harness.model.call_kinds import Parts
from attnproof.harness.model.place import Place
from attnproof.harness.model.text import text_of
from attnproof.harness.model.verdict import Explanation
from attnproof.harness.operations.shared.sequence import snippet
from attnproof.harness.oracles.attempt import ATOMS
from attnproof.harness.oracles.equality import agrees, as_numbers, is_flat, is_tolerant
from attnproof.harness.oracles.trial import Trial
from attnproof.harness.oracles.value_text import as_array, in_brief, type_name

_MOST_ELEMENTS = 1 << 20
"""Most elements of an output that the report gets."""
_MOST_ARGUMENTS = 40
"""Most arguments of a call that are listed."""
_MOST_SHOWN = 8
"""Most elements of a tensor or list that is listed with its values."""


def explain(trial: Trial, parts: Parts, target: str) -> Explanation:
    """Return the first call's outputs beside the reference's, and the program of a sequence.

    `parts` are those of the sequence, `target` is the candidate's module or file.
    """
    first = trial.first
    if trial.case.fault:
        return Explanation([], first.log)
    outputs = [_compared(trial, place, right) for place, right in trial.expected.items()]
    script = trial.operation.call.script(trial.case)
    if script is None:
        return Explanation(outputs, first.log)
    return Explanation(
        outputs,
        first.log,
        [(line.label, line.code) for line in script.lines],
        snippet(trial.operation, script, parts, target),
    )


def _compared(trial: Trial, place: Place, right: Any) -> dict[str, Any]:
    """Return the fields of the `Difference` of an output."""
    got, facts = trial.first.outputs.get(place), trial.first.call.facts
    shown = as_numbers(right, facts), as_numbers(got, facts)
    types = [type_name(value) for value in shown]
    equal = agrees(trial.operation, place, right, got)
    wrong = None if equal or shown[0] is right else _wrong_words(right, got)
    if is_tolerant(trial.operation, place, right) and _has_form(got, right):
        types[0] = types[1]  # the reference is float64 to be exact
        tolerance = trial.operation.contract.tolerances.get(place.root)
        # An error within the tolerance is no mistake, even where the field is wrong.
        wrong = None if equal else beyond(right, got, tolerance) or None
    return {
        "field": str(place) if place.step is None else place.field,
        "step": place.step,
        "expected": _plain(shown[0]),
        "got": _plain(shown[1]),
        "expected_type": types[0],
        "got_type": types[1],
        "equal": equal,
        "wrong": wrong,
    }


def _has_form(got: Any, right: torch.Tensor) -> TypeGuard[torch.Tensor]:
    """True if `got` holds floats in the shape and on the device of `right`."""
    return (
        isinstance(got, torch.Tensor)
        and got.dtype.is_floating_point
        and (got.shape, got.device) == (right.shape, right.device)
    )


def _wrong_words(right: torch.Tensor, got: Any) -> list[list[int]] | None:
    """Return the indices of differing words, which floats do not tell: NaN has several."""
    if not isinstance(got, torch.Tensor) or got.shape != right.shape:
        return None
    indices: list[list[int]] = torch.argwhere(right != got).tolist()
    return indices


def arguments_of(call: Call) -> list[str]:
    """Return a line on each argument: few elements by value, tensors by dtype, shape, stride too.

    The values of a buffer that the call must write are left out.
    """
    arguments = (call.args | call.kwargs).items()
    lines = (line for name, value in arguments for line in _lines(name, value, call.written))
    return list(islice(lines, _MOST_ARGUMENTS))


def _lines(name: str, value: Any, written: Container[str]) -> Iterator[str]:
    """Yield the lines on an argument and on what lists and dataclasses hold."""
    if isinstance(value, torch.Tensor):
        is_shown = value.numel() <= _MOST_SHOWN and name not in written
        values = f" = {in_brief(value)}" if is_shown else ""
        yield f"{name}{values}  {type_name(value)}, stride {list(value.stride())}"
    elif type(value) in ATOMS or isinstance(value, slice | torch.dtype | torch.device | np.generic):
        yield f"{name} = {in_brief(value)}"
    elif isinstance(value, np.ndarray) or (type(value) is list and is_flat(value)):
        values = in_brief(value) if np.size(value) <= _MOST_SHOWN else ""
        yield f"{name} = {values}" if values else f"{name}  {type_name(value)}"
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _lines(f"{name}[{index}]", item, written)
    elif is_dataclass(value) and not isinstance(value, type):
        for field, item in vars(value).items():
            if item is not None:  # most fields of an engine's metadata are optional
                yield from _lines(f"{name}.{field}", item, written)


def _plain(value: Any) -> Any:
    """Return the value as JSON, as text if it is another one or too large."""
    array = as_array(value)
    if array is not None and array.size <= _MOST_ELEMENTS and array.dtype != np.object_:
        elements = array.tolist()
        return elements if _is_json(elements) else text_of(value)  # JSON has no complex numbers
    plain = isinstance(value, bool | int | str | list | None) and array is None
    return value if plain and _is_json(value) else text_of(value)


def _is_json(value: Any) -> bool:
    try:
        msgspec.msgpack.encode(value)
    except (OverflowError, TypeError, UnicodeEncodeError):
        return False
    return True
