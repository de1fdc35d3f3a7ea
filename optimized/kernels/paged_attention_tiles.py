"""Sizes of the tiles and number of key parts of the paged attention kernels.

They are computed from numbers on the host, so a launch needs no sync.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

import torch

from ..dispatch import INTERPRETED
from .versions import power_of_two

Target = Literal["interpreter", "hip", "sm80", "sm90"]
"""Kinds of devices with different tiles; devices newer than sm90 use those of sm90."""
MAX_SPLITS: Final = 64
"""Upper bound of the parts into which the keys of one tile of queries are divided."""
SPLITS_AT_ONCE: Final = 16
"""Parts that one iteration of the merge loads."""
_LEAST_TILES: Final = 4
"""Minimum of key tiles in one part: shorter parts cost more than they save."""
_PROGRAMS_PER_PROCESSOR: Final = 8
"""Programs per multiprocessor up to which more parts still make the launch faster."""
_RESULT_TILE: Final[dict[Target, int]] = {"hip": 16384, "sm80": 8192, "sm90": 16384}
"""Elements of a program's result, rows times head size, that fit into registers."""
_KEY_TILE: Final = 8192
"""Elements of one tile of keys, of which shared memory holds two stages, and of values."""
_UNALIGNED_KEYS: Final = 16
"""Keys of a tile of data that is not aligned."""
_INTERPRETED_KEYS: Final = 32
"""Keys of a tile in the interpreter, where an iteration costs about the same at any size."""


class Tiles(NamedTuple):
    """Sizes of one launch."""

    rows: int
    """Query rows of a program: tokens times the heads that share a kv head."""
    keys: int
    """Keys of one iteration of the loop."""
    head: int
    """Head size, rounded up to a power of two."""
    num_warps: int
    num_stages: int


@lru_cache(maxsize=256)
def tiles_for(head_size: int, most_rows: int, target: Target, *, aligned: bool) -> Tiles:
    """Return the tiles for heads of `head_size` and at most `most_rows` query rows a request.

    Few rows (decodes) get the smallest tile of the matrix units and a deep pipeline, as
    they are bound by memory; many rows get the largest tile that registers hold without
    spills. Data that is not aligned, which no engine has, gets small tiles: element by element,
    large ones spill and compile for seconds.
    """
    head = max(16, power_of_two(head_size))
    least = max(16, power_of_two(most_rows))
    if target == "interpreter":
        return Tiles(min(32, least), _INTERPRETED_KEYS, head, 4, 1)
    rows = min(least, 128, max(16, _RESULT_TILE[target] // head))
    if not aligned:
        return Tiles(min(32, rows), _UNALIGNED_KEYS, head, 4, 1)
    keys = min(64, max(16, _KEY_TILE // head))
    if target == "hip":
        return Tiles(rows, keys, head, 4, 2)
    many = rows == 128 or rows * head >= _RESULT_TILE[target]
    # A key's load waits for the load of its block id, so prefetching one tile takes two stages.
    return Tiles(rows, keys, head, 8 if many else 4, 5 if rows == 16 else 3)


def splits_for(programs: int, most_keys: int, keys: int, device: torch.device) -> int:
    """Return the number of key parts with which `programs` of `most_keys` keys fill the device."""
    wanted = _PROGRAMS_PER_PROCESSOR * _processors(device) // (programs or 1)
    return min(wanted, most_keys // (_LEAST_TILES * keys), MAX_SPLITS) or 1


@lru_cache(maxsize=16)
def target_of(device: torch.device) -> Target:
    """Return the kind of device that runs kernels for tensors on `device`."""
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


@lru_cache(maxsize=256)
def constants_of(head_size: int, tiles: Tiles, aligned: int) -> dict[str, Any]:
    """Return the compile-time constants and options of `attend_kernel`."""
    return {
        "HEAD": head_size,
        "HEAD_TILE": tiles.head,
        "ROWS": tiles.rows,
        "KEYS": tiles.keys,
        "ALIGNED": aligned,
        "WIDE": INTERPRETED,
        "num_warps": tiles.num_warps,
        "num_stages": tiles.num_stages,
    }
