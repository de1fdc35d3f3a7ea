"""Sizes of the tiles and number of key parts of the paged attention kernels.

They are computed from numbers on the host, so a launch needs no sync. The sizes of aligned data
on a GPU are those of `attention_tiles.json`, which `tools/attention_tiles.py` writes.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import torch

from ..dispatch import INTERPRETED
from .launcher import cdiv
from .versions import power_of_two

Target = Literal["interpreter", "hip", "sm80", "sm90"]
"""Kinds of devices with different tiles; devices newer than sm90 use those of sm90."""
MAX_SPLITS: Final = 64
"""Upper bound of the parts into which the keys of one tile of queries are divided."""
SPLITS_AT_ONCE: Final = 16
"""Parts that one iteration of the merge loads."""
_LEAST_TILES: Final = 4
"""Minimum of key tiles in one part: shorter parts cost more than they save."""
_NEARLY: Final = 1.05
"""Estimated time of a launch, relative to the shortest, up to which fewer parts are better:
bounds of lengths may be loose, and then parts are short."""
_LEAST_HEAD, _MOST_HEAD, _MOST_ROWS = 64, 256, 128
"""Bounds of the head sizes and of the query rows in the table."""
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
    resident: int
    """Programs that a multiprocessor holds at once."""


_TABLE: Final = json.loads(
    Path(__file__).with_name("attention_tiles.json").read_text(encoding="utf-8")
)
"""Sizes by target, head size and query rows."""


@lru_cache(maxsize=256)
def tiles_for(head_size: int, most_rows: int, target: Target, *, aligned: bool) -> Tiles:
    """Return the tiles for heads of `head_size` and at most `most_rows` query rows a request.

    Data that is not aligned, which no engine has, gets small tiles: element by element, large
    ones spill and compile for seconds.
    """
    head = max(16, power_of_two(head_size))
    least = max(16, power_of_two(most_rows))
    if target == "interpreter":
        return Tiles(min(32, least), _INTERPRETED_KEYS, head, 4, 1, 8)
    head = max(head, _LEAST_HEAD)  # smaller ones, which no engine has, need no version
    in_table = min(head, _MOST_HEAD)
    row = _TABLE[f"{target} {in_table} {min(least, _MOST_ROWS)}"]
    beyond = max(1, head // in_table)  # the elements of a tile stay the same
    rows, keys = (max(16, row[name] // beyond) for name in ("rows", "keys"))
    if not aligned:
        return Tiles(min(32, rows), _UNALIGNED_KEYS, head, 4, 1, 2)
    return Tiles(rows, keys, head, row["num_warps"], row["num_stages"], row["resident"])


def splits_for(programs: int, most_keys: int, tiles: Tiles, device: torch.device) -> int:
    """Return the number of key parts with which `programs` of `most_keys` keys end first."""
    slots = tiles.resident * _processors(device)
    if programs >= slots and tiles.rows > 16:
        return 1  # prefills differ in length and begin with the longest: waves are no measure
    return _splits(programs, cdiv(most_keys, tiles.keys), slots, 2 * tiles.rows / tiles.keys)


@lru_cache(maxsize=1024)
def _splits(programs: int, key_tiles: int, slots: int, part: float) -> int:
    """Return the fewest parts whose estimated time is nearly the shortest.

    The unit is the time of one tile of keys in each of the device's `slots`. Programs run in
    waves of that many; beside its share of the tiles, a program takes about one unit for itself,
    as does the launch of the merge. `part` is what writing and reading the result of a part takes,
    in tiles.
    """

    def time(parts: int) -> float:
        waves = cdiv(programs * parts, slots)
        merge = 1 + parts * programs * part / slots if parts > 1 else 0
        return waves * (cdiv(key_tiles, parts) + 1) + merge

    times = [time(parts) for parts in range(1, min(key_tiles // _LEAST_TILES, MAX_SPLITS) + 1)]
    return next((n for n, each in enumerate(times, 1) if each <= min(times) * _NEARLY), 1)


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
        "FULL": head_size == tiles.head,
        "HEAD_TILE": tiles.head,
        "ROWS": tiles.rows,
        "KEYS": tiles.keys,
        "ALIGNED": aligned,
        "WIDE": INTERPRETED,
        "num_warps": tiles.num_warps,
        "num_stages": tiles.num_stages,
    }
