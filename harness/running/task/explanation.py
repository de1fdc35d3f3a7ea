"""The outputs of one case beside the reference's, for the report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

import msgspec
import numpy as np
import torch

from attnproof.harness.model.call import Call
from attnproof.harness.model.call_kinds import Parts
from attnproof.harness.model.text import text_of
from attnproof.harness.model.verdict import Explanation
from attnproof.harness.operations.shared.sequence import snippet
from attnproof.harness.oracles.equality import agrees, as_array, type_name
from attnproof.harness.oracles.trial import Trial

_MOST_ELEMENTS = 1 << 20
"""Most elements of an output that the report gets."""
_MOST_TENSORS = 40
"""Most tensors of a call that are listed."""


def explain(trial: Trial, parts: Parts, target: str) -> Explanation:
    """Return the first call's outputs beside the reference's, and the program of a sequence.

    `parts` are those of the sequence, `target` is the candidate's module or file.
    """
    first = trial.first
    if trial.case.fault:
        return Explanation([], first.log)
    outputs = []
    for place, right in trial.expected.items():
        got = first.outputs.get(place)
        outputs.append(
            {
                "field": str(place) if place.step is None else place.field,
                "step": place.step,
                "expected": _plain(right),
                "got": _plain(got),
                "expected_type": type_name(right),
                "got_type": type_name(got),
                "equal": agrees(trial.operation, place, right, got),
            }
        )
    script = trial.operation.call.script(trial.case)
    if script is None:
        return Explanation(outputs, first.log)
    return Explanation(
        outputs,
        first.log,
        [(line.label, line.code) for line in script.lines],
        snippet(trial.operation, script, parts, target),
    )


def tensors_of(call: Call) -> list[str]:
    """Return a line on each tensor among the arguments: dtype, shape, stride and device."""
    arguments = call.args | call.kwargs
    tensors = [pair for name, value in arguments.items() for pair in _named(name, value)]
    return [
        f"{name}  {type_name(tensor)}, stride {list(tensor.stride())}"
        for name, tensor in tensors[:_MOST_TENSORS]
    ]


def _named(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of an argument, those in lists and dataclasses with their place."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _named(f"{name}[{index}]", item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field, item in vars(value).items():
            yield from _named(f"{name}.{field}", item)


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
