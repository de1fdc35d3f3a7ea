"""The input of a call in other words: dicts by row in the opposite order, no tensor object twice.

Bug classes: rows of a dict that are taken to ascend, as they do until a request takes the place of
another one; memory that is shared, recognised by the object and not by its address.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

import torch

from attnproof.harness.model.call import Call

ORDER, OBJECT = "depends on the order of a dict", "depends on the object that holds the memory"


def restated(call: Call) -> str:
    """Return the diagnosis of a result that `restate` changes, "" if it changes no input."""
    tensors = [id(value) for value in _values(call) if isinstance(value, torch.Tensor)]
    if len(set(tensors)) < len(tensors):
        return OBJECT
    return ORDER if any(len(rows) > 1 for rows in _dicts_of(call)) else ""


def restate(call: Call) -> None:
    """Reverse the dicts by row in place; make a tensor that is passed again a view."""
    seen = set[int]()
    for arguments in (call.args, call.kwargs):
        for name, value in arguments.items():
            if isinstance(value, torch.Tensor) and id(value) in seen:
                arguments[name] = value.view(value.shape)
            seen.add(id(value))
    for rows in _dicts_of(call):
        items = [*rows.items()][::-1]
        rows.clear()
        rows.update(items)


def _values(call: Call) -> list[Any]:
    return [*call.args.values(), *call.kwargs.values()]


def _dicts_of(call: Call) -> Iterator[dict[Any, Any]]:
    """Yield the arguments, and the fields of dataclasses, that are dicts by row.

    The order of names may have a meaning: the first layer stands for all.
    """
    for value in _values(call):
        fields = vars(value).values() if is_dataclass(value) and hasattr(value, "__dict__") else ()
        for each in (value, *fields):
            if type(each) is dict and all(type(key) is int for key in each):
                yield each
