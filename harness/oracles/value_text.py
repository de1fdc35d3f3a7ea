"""Values of outputs as text of one line."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from attnproof.harness.model.call import MISSING
from attnproof.harness.model.text import DIGITS, float_text


def as_array(value: Any) -> np.ndarray | None:
    """Return a tensor, an array or a list of ints as an array; None for anything else."""
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu()
        # numpy has no bfloat16; such values are only shown, not compared.
        return (plain.double() if plain.is_floating_point() else plain).numpy()
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, list) and all(isinstance(item, int) for item in value):
        wide = any(not -(2**63) <= item < 2**63 for item in value)
        return np.array(value, dtype=object if wide else np.int64)
    return None


def brief(value: Any) -> str:
    """Return the value on one line of at most 200 characters, with the type unless it is a list."""
    if as_array(value) is None or isinstance(value, list):
        return in_brief(value)
    return f"{in_brief(value)} ({type_name(value)})"


def briefs(expected: Any, got: Any) -> dict[str, str]:
    """Return both values in brief, floats in as few digits as tell the two apart."""
    texts = [(in_brief(expected, digits), in_brief(got, digits)) for digits in DIGITS]
    pair = next((pair for pair in texts if pair[0] != pair[1]), texts[0])
    types = [
        "" if as_array(value) is None or isinstance(value, list) else f" ({type_name(value)})"
        for value in (expected, got)
    ]
    return {"expected": pair[0] + types[0], "got": pair[1] + types[1]}


def in_brief(value: Any, digits: int = DIGITS[0]) -> str:
    """Return the value without its type, floats in so many digits."""
    array = as_array(value)
    if array is None:
        return float_text(value, digits) if type(value) is float else repr(value)[:200]
    in_digits: Any = {"float_kind": lambda number: float_text(number, digits)}
    text = np.array2string(array, threshold=24, edgeitems=6, formatter=in_digits)
    return " ".join(text.split())[:200]


def type_name(value: Any) -> str:
    """Return the type as text, such as "int32 [3, 2] cpu", "list of 5" or "int"."""
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{dtype} {list(value.shape)} {value.device}"
    if isinstance(value, np.ndarray):
        return f"numpy {value.dtype} {list(value.shape)}"
    if isinstance(value, list):
        return f"list of {len(value)}"
    return "missing" if value is MISSING else type(value).__name__
