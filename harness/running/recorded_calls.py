"""Recorded calls of an engine's functions: arguments for the reference, results to compare."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from attnproof import reference
from attnproof.harness.cases.recorded.steps import Called
from attnproof.harness.cases.recorded.values import ValueProblem, array_of, value_of
from attnproof.harness.operations.batch.reorder import (
    REORDER,
    Engine,
    order_of,
    order_violations,
    regions_of,
)

_NOT_OURS = ("device",)
"""Arguments of engines that the reference has not: it returns tensors where the input is."""
_RENAMED = {"query_start_loc_p_cpu": "query_start_loc_p"}
_CLASS = "__class__"


class Mismatch(NamedTuple):
    """The first field of a recorded result that differs from the reference's."""

    field: str
    expected: Any
    got: Any


class Progress(Engine):
    """The rows of a recorded reordering."""

    def __init__(self, recorded: dict[str, Any], *, with_prompts: bool) -> None:
        try:
            self.recorded_ids: list[str] = [str(req_id) for req_id in recorded["req_ids"]]
            scheduled = recorded["num_scheduled"]
            lengths = [int(scheduled[req_id]) for req_id in self.recorded_ids]
            computed = [int(length) for length in recorded["computed"]]
            prompts = [int(length) for length in recorded.get("num_prompt") or ()]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueProblem(f"the rows of a reordering lack {error}") from None
        self.params: dict[str, Any] = {"query_lens": lengths, "computed_lens": computed}
        if prompts and with_prompts:
            self.params["prompt_lens"] = prompts
        super().__init__(**self.params)


def reference_result(called: Called, *, with_prompts: bool) -> tuple[dict[str, Any], Any]:
    """Return the arguments of a call by the reference's names, and the reference's result.

    `with_prompts`: the engine looks at prompt tokens when it reorders (SPEC.md section 11).
    Raises ValueProblem for arguments that cannot be read, ValueError and TypeError if the
    reference refuses them.
    """
    function = getattr(reference, called.f)
    if called.f == REORDER:
        args: list[Any] = [Progress(called.args[0], with_prompts=with_prompts), *called.args[1:]]
        args.insert(1, args[0])
    else:
        args = [value_of(value, f"argument {index}") for index, value in enumerate(called.args)]
    kwargs = {
        _RENAMED.get(name, name): value_of(value, name)
        for name, value in called.kwargs.items()
        if name not in _NOT_OURS
    }
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise ValueProblem(f"arguments of {called.f}: {error}") from None
    return dict(bound.arguments), function(*bound.args, **bound.kwargs)


def mismatch_of(called: Called, arguments: dict[str, Any], expected: Any) -> Mismatch | None:
    """Return the first difference of the recorded result, None if all of it agrees."""
    if called.f == REORDER:
        return _wrong_order(called.result, arguments)
    return next(_differences("result", expected, called.result), None)


def lacking_fields(expected: Any, recorded: Any) -> Iterator[str]:
    """Yield the fields of recorded metadata that the reference's result lacks."""
    if isinstance(recorded, dict) and _CLASS in recorded:
        for field, value in recorded.items():
            if field != _CLASS and hasattr(expected, field):
                yield from lacking_fields(getattr(expected, field), value)
            elif not field.startswith("_"):
                yield field
    elif isinstance(recorded, list) and isinstance(expected, tuple | list):
        for right, value in zip(expected, recorded, strict=False):
            yield from lacking_fields(right, value)


def _wrong_order(result: Any, arguments: dict[str, Any]) -> Mismatch | None:
    """Return how a recorded order breaks the contract of reordering."""
    batch, threshold = arguments["input_batch"], arguments.get("decode_threshold", 1)
    names = dict(zip(batch.recorded_ids, batch.before, strict=True))
    rows = [names.get(str(req_id), str(req_id)) for req_id in result["req_ids"]]
    order = order_of(batch)
    moved = rows != list(batch.before)
    order.values.update(req_ids=rows, swaps=int(moved), read_after_swap=False)
    if bool(result["moved"]) != moved:
        return Mismatch("moved", moved, bool(result["moved"]))
    for violation in order_violations(regions_of(batch.params, threshold), order):
        return Mismatch("order", "rows in the order of their regions", f"{violation.text}: {rows}")
    return None


def _differences(name: str, expected: Any, recorded: Any) -> Iterator[Mismatch]:
    """Yield the differences of the values that were recorded."""
    if isinstance(recorded, dict) and _CLASS in recorded:
        for field, value in recorded.items():
            if field != _CLASS and hasattr(expected, field):
                yield from _differences(field, getattr(expected, field), value)
    elif isinstance(recorded, dict) and "t" in recorded and "v" in recorded:
        yield from _array_differences(name, expected, recorded)
    elif isinstance(recorded, dict) and "repr" not in recorded:
        by_text = {str(key): value for key, value in expected.items()}
        for key, value in recorded.items():
            yield from _differences(str(key), by_text.get(key), value)
    elif isinstance(recorded, list) and isinstance(expected, tuple | list):
        if len(recorded) != len(expected):
            yield Mismatch(name, expected, recorded)
        for index, (right, value) in enumerate(zip(expected, recorded, strict=False)):
            yield from _differences(f"{name}[{index}]", right, value)
    elif not isinstance(recorded, dict) and expected != recorded:
        yield Mismatch(name, expected, recorded)


def _array_differences(name: str, expected: Any, recorded: dict[str, Any]) -> Iterator[Mismatch]:
    if not isinstance(recorded["v"], list):  # a numpy scalar
        if expected != recorded["v"]:
            yield Mismatch(name, expected, recorded["v"])
        return
    got = array_of(recorded, name)
    right = expected.cpu().numpy() if isinstance(expected, torch.Tensor) else expected
    if not isinstance(right, np.ndarray):
        yield Mismatch(name, expected, torch.from_numpy(got))
    elif right.dtype != got.dtype or not np.array_equal(right, got):
        yield Mismatch(name, torch.from_numpy(right.copy()), torch.from_numpy(got))
