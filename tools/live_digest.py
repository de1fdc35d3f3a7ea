"""Digests of metadata, field by field, to compare that of two processes exactly."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Set
from enum import Enum
from typing import Any

import numpy as np
import torch

_PLAIN = (Enum, bool, int, float, str, bytes, type(None), torch.dtype, torch.device)
_DEEPEST = 8


def digests(value: Any, name: str = "") -> dict[str, str]:
    """Return a digest of each field of an object by its path, such as `decode.seq_lens`.

    Of tensors it covers dtype, shape and bytes. A numpy scalar is its number. Fields of private
    names are caches, and left out.
    """
    return dict(_walk(value, name, 0))


def first_difference(
    right: dict[str, str], got: dict[str, str], ignored: Set[str] = frozenset()
) -> str:
    """Return the first field that differs or that one of them lacks, "" without one."""
    fields = (field for field in [*right, *got] if field not in ignored)
    return next((field for field in fields if right.get(field) != got.get(field)), "")


def _walk(value: Any, name: str, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, _PLAIN):
        yield name, repr(value)
    elif isinstance(value, np.generic):
        yield name, repr(value.item())
    elif isinstance(value, torch.Tensor | np.ndarray):
        yield name, _of_array(value)
    elif callable(value) or depth == _DEEPEST:
        yield name, type(value).__name__
    else:
        yield name, type(value).__qualname__
        for key, item in _items(value):
            yield from _walk(item, f"{name}.{key}" if name else str(key), depth + 1)


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((str(key), item) for key, item in value.items())
    elif isinstance(value, list | tuple):
        yield from ((str(index), item) for index, item in enumerate(value))
    else:
        held = getattr(value, "__dict__", {})
        yield from ((key, item) for key, item in sorted(held.items()) if key[0] != "_")


def _of_array(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    else:
        data = value.tobytes()
    return f"{value.dtype} {tuple(value.shape)} {hashlib.blake2b(data, digest_size=8).hexdigest()}"
