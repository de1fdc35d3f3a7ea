"""Whether every array with one entry a row moves with its row, whatever arrays there are.

Bug class: rows that trade places and leave some of their state behind (K12, K13). A list
of arrays to look at would be as incomplete as the swap that forgot one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

_ROWS, _COLUMNS, _BLOCK_SIZE = 7, 9, 4
_IDS = ("a", "b", "c", "d", "e")
_ONE, _OTHER = 1, 4
"""Rows that trade places: an odd and an even one, so that stamps of booleans differ."""
_QUERY_LEN = 2 * _BLOCK_SIZE


def left_behind(offered: Any) -> list[tuple[str, str]]:
    """Attributes whose entries do not move with their rows, and the method that forgets them.

    Each attribute is stamped on a batch of its own, with another value in each row; after
    the method each request must still have its stamp. An attribute that `build` writes
    for all rows is a step buffer and no state. Of a wider entry the first element counts:
    what lies behind a row's live blocks need not move.
    """
    return [
        (name, method)
        for name in _per_row(_filled(offered))
        if not _is_step_buffer(offered, name)
        for method, move in _MOVES.items()
        if _forgets(offered, name, move)
    ]


def _filled(offered: Any) -> Any:
    """Five requests of two blocks each in a batch of seven rows."""
    batch = offered(_ROWS, 64, _COLUMNS, _BLOCK_SIZE)
    for row, req_id in enumerate(_IDS):
        batch.add_request(req_id, [30 + 2 * row, 31 + 2 * row])
    return batch


def _swap(batch: Any) -> None:
    batch.swap_states(_ONE, _OTHER)


def _condense(batch: Any) -> None:
    batch.remove_request(_IDS[_ONE])
    batch.condense()


_MOVES: dict[str, Callable[[Any], None]] = {"swap_states": _swap, "condense": _condense}


def _per_row(batch: Any) -> dict[str, Any]:
    """Arrays, tensors and lists with an entry a row; `req_ids` says which request a row is."""
    return {
        name: value
        for name, value in _attributes(batch).items()
        if name != "req_ids" and _length(value) in (_ROWS, len(_IDS))
    }


def _attributes(batch: Any) -> dict[str, Any]:
    """By name, those of an attribute's value too."""
    found = {}
    for name, value in _parts(batch):
        found[name] = value
        if not isinstance(value, list | torch.Tensor | np.ndarray):
            found |= {f"{name}.{inner}": part for inner, part in _parts(value)}
    return found


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
    """Another value in each row, small enough for every dtype and for a number of blocks."""
    for row in range(len(values)):
        if isinstance(values, list):
            values[row] = [row + 1] if isinstance(values[row], list) else row + 1
        else:
            values[row] = row % 2 if values.dtype in (torch.bool, np.bool_) else row + 1


def _entry(values: Any, row: int) -> Any:
    """The first element of a row's entry, as Python has it."""
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
    except Exception:  # what stops a build is read by it
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
