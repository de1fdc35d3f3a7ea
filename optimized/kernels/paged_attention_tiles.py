"""How the paged attention kernels are cut up: tiles by head size, splits by what is idle.

All of it follows from numbers that the host knows, so that a launch needs no sync.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

import torch

from ..dispatch import INTERPRETED

Target = Literal["interpreter", "hip", "sm80", "sm90"]
"""Kinds of devices that get different tiles; newer ones than sm90 are as sm90."""
MAX_SPLITS: Final = 64
"""Most parts that the keys of one tile of queries are split into."""
SPLITS_AT_ONCE: Final = 16
"""Parts that one step of the merge loads."""
_LEAST_TILES: Final = 4
"""Tiles of keys in one part, at least: shorter ones cost more than they save."""
_PROGRAMS_PER_PROCESSOR: Final = 8
"""Programs for each multiprocessor up to which splitting still fills idle ones."""
_RESULT_TILE: Final[dict[Target, int]] = {"hip": 16384, "sm80": 8192, "sm90": 16384}
"""Elements of a program's result, rows times head size, that registers have room for."""
_KEY_TILE: Final = 8192
"""Elements of one tile of keys: what two stages of keys and values leave room for."""
_INTERPRETED_KEYS: Final = 32
"""A step of the loop costs the interpreter about the same whatever its size."""


class Tiles(NamedTuple):
    """Sizes of one launch."""

    rows: int
    """Query rows of a program: tokens times the heads that share a kv head."""
    keys: int
    """Keys of one step of the loop."""
    head: int
    """Head size, rounded up to a power of two."""
    num_warps: int
    num_stages: int


@lru_cache(maxsize=256)
def tiles_for(head_size: int, most_rows: int, target: Target) -> Tiles:
    """Tiles for heads of `head_size` where no request has more than `most_rows` query rows.

    A few rows (decodes) get the smallest tile of the matrix units and a deep pipeline,
    as they are bound by memory; many get as many rows as registers hold without spills.
    """
    head = max(16, _power_of_two(head_size))
    least = max(16, _power_of_two(most_rows))
    if target == "interpreter":
        return Tiles(min(32, least), _INTERPRETED_KEYS, head, 4, 1)
    rows = min(least, 128, max(16, _RESULT_TILE[target] // head))
    keys = min(64, max(16, _KEY_TILE // head))
    if target == "hip":
        return Tiles(rows, keys, head, 4, 2)
    many = rows == 128 or rows * head >= _RESULT_TILE[target]
    # Keys wait for their block's id, so one of them prefetched takes two stages.
    return Tiles(rows, keys, head, 8 if many else 4, 5 if rows == 16 else 3)


def splits_for(programs: int, most_keys: int, keys: int, device: torch.device) -> int:
    """Parts to split the keys into, so that `programs` of at most `most_keys` fill the device."""
    wanted = _PROGRAMS_PER_PROCESSOR * _processors(device) // max(1, programs)
    return max(1, min(wanted, most_keys // (_LEAST_TILES * keys), MAX_SPLITS))


@lru_cache(maxsize=16)
def target_of(device: torch.device) -> Target:
    """The kind of device that kernels for tensors on `device` run on."""
    if INTERPRETED:
        return "interpreter"
    if torch.version.hip is not None:
        return "hip"
    return "sm90" if torch.cuda.get_device_capability(device) >= (9, 0) else "sm80"


@lru_cache(maxsize=16)
def _processors(device: torch.device) -> int:
    if INTERPRETED:
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _power_of_two(number: int) -> int:
    """The least one that is not below `number`."""
    return 1 << max(0, number - 1).bit_length()


def constants_of(head_size: int, tiles: Tiles, aligned: int) -> dict[str, Any]:
    """The sizes that `attend_kernel` is compiled for."""
    return {
        "HEAD": head_size,
        "HEAD_TILE": tiles.head,
        "ROWS": tiles.rows,
        "KEYS": tiles.keys,
        "ALIGNED": aligned,
        "WIDE": INTERPRETED,
    }
