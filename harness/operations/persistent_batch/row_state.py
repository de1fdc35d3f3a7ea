"""Search for arrays with one entry a row that do not move with their rows.

Bug class: rows that change places and leave some of their state behind (K12, K13). The
arrays are found by their length: a list of names could be as incomplete as the faulty swap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

_ROWS, _COLUMNS, _BLOCK_SIZE = 7, 9, 4
_IDS = ("a", "b", "c", "d", "e")
_ODD_ROW, _EVEN_ROW = 1, 4
"""Rows that change places: an odd and an even one, so that boolean stamps differ."""
_QUERY_LEN = 2 * _BLOCK_SIZE


def left_behind(offered: Any) -> list[tuple[str, str]]:
    """Return attributes whose entries do not move with their rows, each with the method at fault.

    Each attribute is checked on a new batch: every row of the attribute gets another stamp,
    and after the method each request must still have its stamp. An attribute that `build`
    writes in all rows is a step buffer, not state. Only the first element of a wider entry
    is compared, because stale columns need not move.
    """
    return [
        (name, method)
        for name in _per_row(_filled(offered))
        if not _is_step_buffer(offered, name)
        for method, move in _MOVES.items()
        if _forgets(offered, name, move)
    ]


def _filled(offered: Any) -> Any:
    """Return a batch of seven rows with five requests of two blocks each."""
    batch = offered(_ROWS, 64, _COLUMNS, _BLOCK_SIZE)
    for row, req_id in enumerate(_IDS):
        batch.add_request(req_id, [30 + 2 * row, 31 + 2 * row])
    return batch


def _swap(batch: Any) -> None:
    batch.swap_states(_ODD_ROW, _EVEN_ROW)


def _condense(batch: Any) -> None:
    batch.remove_request(_IDS[_ODD_ROW])
    batch.condense()


_MOVES: dict[str, Callable[[Any], None]] = {"swap_states": _swap, "condense": _condense}


def _per_row(batch: Any) -> dict[str, Any]:
    """Return arrays, tensors and lists with one entry a row, except `req_ids`."""
    return {
        name: value
        for name, value in _attributes(batch).items()
        if name != "req_ids" and _length(value) in (_ROWS, len(_IDS))
    }


def _attributes(batch: Any) -> dict[str, Any]:
    """Return attributes by name, with the attributes of their values."""
    attributes = {}
    for name, value in _parts(batch):
        attributes[name] = value
        if not isinstance(value, list | torch.Tensor | np.ndarray):
            attributes |= {f"{name}.{inner}": part for inner, part in _parts(value)}
    return attributes


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, tuple):
        names = getattr(value, "_fields", range(len(value)))
        yield from zip(map(str, names), value, strict=True)
    else:
        yield from getattr(value, "__dict__", {}).items()


def _length(value: Any) -> int:
    if isinstance(value, torch.Tensor | np.ndarray):
        return len(value) if value.ndim else 0
    return len(value) if isinstance(value, list) else 0


def _stamp(values: Any) -> None:
    """Write another value to each row, small enough for any dtype and for a number of blocks."""
    for row in range(len(values)):
        if isinstance(values, list):
            values[row] = [row + 1] if isinstance(values[row], list) else row + 1
        else:
            values[row] = row % 2 if values.dtype in (torch.bool, np.bool_) else row + 1


def _entry(values: Any, row: int) -> Any:
    """Return the first element of a row's entry as a Python object."""
    value = values[row]
    if isinstance(value, torch.Tensor | np.ndarray):
        first = value.reshape(-1)[:1].tolist()
        return first[0] if first else None
    return value


def _is_step_buffer(offered: Any, name: str) -> bool:
    batch = _filled(offered)
    values = _per_row(batch)[name]
    _stamp(values)
    before = [_entry(values, row) for row in range(len(_IDS))]
    try:
        batch.build(dict.fromkeys(_IDS, _QUERY_LEN))
    except Exception:  # the build reads the attribute: a stamp made it fail
        return False
    values = _attributes(batch)[name]
    return all(_entry(values, row) != stamp for row, stamp in enumerate(before))


def _forgets(offered: Any, name: str, move: Callable[[Any], None]) -> bool:
    batch = _filled(offered)
    values = _per_row(batch)[name]
    _stamp(values)
    before = {req_id: _entry(values, row) for row, req_id in enumerate(batch.req_ids)}
    move(batch)
    values = _attributes(batch)[name]
    return any(_entry(values, row) != before[req_id] for row, req_id in enumerate(batch.req_ids))
