"""Launches of the kernels of sections 15, 20 and 22, which `launches` compiles with all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from .append_positions import write_append_positions
from .last_slots import read_last_slots
from .page_decode import decode_pages
from .page_extend import extend_pages
from .page_gather import gather_pages
from .positions import write_positions
from .request_indices import write_request_indices
from .sparse_indices import convert_positions
from .token_pool import write_token_rows

Launch = Callable[[], object]
_I32: Final = torch.int32
_I64: Final = torch.int64
_REQUESTS: Final = 64
_COLUMNS: Final = 500
_TOKENS: Final = 4000
_POOL: Final = 128
"""Rows of the pool of requests' slots."""


def page_launches() -> dict[str, Launch]:
    """Return every launch by its name, such as "page table, int32"."""
    return {**_tables(), **_allocation(), **_pool()}


def _rows(dtype: torch.dtype, step: int = 1, more: int = 0) -> torch.Tensor:
    """Return (R + more,) of a stride of `step`, without memory."""
    whole = torch.empty(step * (_REQUESTS + more), dtype=dtype, device="meta")
    return whole[::step]


def _meta(*shape: int, dtype: torch.dtype = _I32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _tables() -> dict[str, Launch]:
    def table(dtype: torch.dtype = _I32) -> Launch:
        pages = _meta(_REQUESTS, _COLUMNS, dtype=dtype)
        return lambda: gather_pages(pages, None, None, _rows(_I32, more=1), _meta(_TOKENS))

    def slots(size: int, *, started: bool = False, step: int = 1) -> Launch:
        pool = _meta(_POOL, _COLUMNS)
        starts = _rows(_I32, step) if started else None
        rows, indptr = _rows(_I64, step), _rows(_I32, step, more=1)
        out = _meta(_TOKENS, dtype=_I64 if size > 1 else _I32)
        return lambda: gather_pages(pool, rows, starts, indptr, out, size)

    def appended(dtype: torch.dtype, step: int = 1) -> Launch:
        offsets, lengths = _rows(dtype, step, more=1), _rows(dtype, step)
        return lambda: write_append_positions(offsets, lengths, _meta(2, _TOKENS))

    def selected() -> Launch:
        table, rows = _meta(_REQUESTS, _COLUMNS), _meta(_TOKENS, 2048)
        tokens, ranks = _meta(_TOKENS), (2, 1, 16)
        return lambda: convert_positions(tokens, table, rows, 64, 64, ranks, torch.empty_like(rows))

    def requests(dtype: torch.dtype) -> Launch:
        offsets, out = _rows(dtype, more=1), _meta(_TOKENS)
        return lambda: write_request_indices(offsets, out, _TOKENS - 9, _TOKENS)

    return {
        "page table, int32": table(),
        "page table, int64": table(_I64),
        "slots of a pool": slots(1),
        "slots of a pool from starts": slots(1, started=True),
        "slots of a pool of pages": slots(16, started=True),
        "slots of a pool, strided": slots(1, started=True, step=2),
        "appended tokens, int32": appended(_I32),
        "appended tokens, int64": appended(_I64),
        "appended tokens, strided": appended(_I32, 2),
        "rows of selected keys": selected(),
        "requests of tokens, int32": requests(_I32),
        "requests of tokens, int64": requests(_I64),
    }


def _allocation() -> dict[str, Launch]:
    def extend(dtype: torch.dtype, step: int = 1) -> Launch:
        lengths, last = _rows(dtype, step), _rows(_I64, step)
        free, out = _meta(_COLUMNS, dtype=_I64), _meta(_TOKENS, dtype=_I64)
        return lambda: extend_pages(lengths, lengths, last, free, out, 16)

    def decode(dtype: torch.dtype, step: int = 1) -> Launch:
        lengths, last = _rows(dtype, step), _rows(_I64, step)
        free, out = _meta(_COLUMNS, dtype=_I64), _meta(_REQUESTS, dtype=_I64)
        return lambda: decode_pages(lengths, last, free, out, 16)

    return {
        "slots of new tokens, int32": extend(_I32),
        "slots of new tokens, int64": extend(_I64),
        "slots of new tokens, strided": extend(_I32, 2),
        "slots of decodes, int32": decode(_I32),
        "slots of decodes, int64": decode(_I64),
        "slots of decodes, strided": decode(_I32, 2),
    }


def _pool() -> dict[str, Launch]:
    def last(dtype: torch.dtype) -> Launch:
        pool, lengths = _meta(_POOL, _COLUMNS), _rows(dtype)
        out = _meta(_REQUESTS, dtype=dtype)
        return lambda: read_last_slots(pool, _rows(_I64), lengths, out)

    def write(dtype: torch.dtype, step: int = 1) -> Launch:
        pool, lengths = _meta(_POOL, _COLUMNS, dtype=dtype), _rows(_I64, step)
        prefixes, new = _meta(2 * _REQUESTS, dtype=_I64), _meta(_TOKENS, dtype=_I64)
        return lambda: write_token_rows(pool, lengths, prefixes, lengths, lengths, new)

    def positions(dtype: torch.dtype, *, prefixed: bool = True) -> Launch:
        lengths = _rows(dtype)
        out, starts = _meta(_TOKENS, dtype=_I64), _meta(_REQUESTS)
        prefixes = lengths if prefixed else None
        return lambda: write_positions(prefixes, lengths, out, starts)

    return {
        "last slots, int32": last(_I32),
        "last slots, int64": last(_I64),
        "rows of a pool, int32": write(_I32),
        "rows of a pool, int64": write(_I64),
        "rows of a pool, strided": write(_I32, 2),
        "positions, int32": positions(_I32),
        "positions, int64": positions(_I64),
        "positions without prefixes": positions(_I32, prefixed=False),
    }
