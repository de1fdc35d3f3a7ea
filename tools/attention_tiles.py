"""Choose the tiles of the paged attention kernel and write the table that it reads.

    python tools/attention_tiles.py             check that the table follows from the stored rows
    python tools/attention_tiles.py --compile   without a GPU: compile for each target, choose by
                                                resources, write the table
    python tools/attention_tiles.py --measure   on a GPU: time candidates, and write the fastest
                                                into the rows of this GPU's target

A row of the table is for one target, head size and number of query rows a request; its `origin`
says how it was chosen. By resources it is the first candidate, larger tiles and deeper pipelines
first, that does not spill and of which a multiprocessor holds at least one program. The resources
of every candidate up to that one are in `tests/optimized/attention_tiles.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "optimized" / "kernels" / "attention_tiles.json"
RESOURCES = ROOT / "tests" / "optimized" / "attention_tiles.json"
BY_RESOURCES = "chosen by resources, not measured"
TARGETS = {"hip": "gfx942", "sm80": "sm_80", "sm90": "sm_90"}
LAUNCH = "attnproof.optimized.kernels.paged_attention_launch"
SIZES = {64: (64,), 128: (96, 128), 256: (192, 256)}
"""Head sizes of models by that of their row in the table."""
SHARED_KIB = {"hip": 64, "sm80": 164, "sm90": 228}
"""Shared memory of a multiprocessor."""
RESULT = {"hip": 16384, "sm80": 8192, "sm90": 16384}
"""Elements of a program's result, rows times head size, of the largest candidate."""
KEY_TILE = 8192
"""Elements of one tile of keys, and of values, of the largest candidate."""
HARMLESS_STACK = 32
"""Bytes of stack a thread: eight registers, used outside the loop."""
DECODES = ((64, 1, 8192), (8, 1, 32768), (256, 1, 1024))
PREFILLS = ((1, 2048, 2048), (1, 16384, 16384), (4, 1024, 9216))
"""Requests, queries and keys of each, of the batches that are timed."""
Cell = tuple[str, int, int]
"""Target, head size, query rows a request."""
CELLS: tuple[Cell, ...] = tuple(product(TARGETS, SIZES, (16, 32, 64, 128)))
Sizes = tuple[int, int, int, int]
"""Query rows of a program, keys, warps, stages."""
Cost = dict[str, int]


def candidates(target: str, head: int, need: int) -> Iterator[Sizes]:
    """Yield tiles for `need` query rows a request, the largest with the deepest pipeline first.

    Decodes are bound by memory and get a deep pipeline; of other programs large ones get more
    warps. A key's load waits for the load of its block id, so prefetching a tile takes two stages.
    """
    most_rows = min(need, max(16, RESULT[target] // head))
    most_keys = min(64, KEY_TILE // head)
    deepest = 2 if target == "hip" else 5 if need == 16 else 3
    while most_rows >= 16:
        many = target != "hip" and (most_rows == 128 or most_rows * head >= RESULT[target])
        for keys in (most_keys, most_keys // 2):
            for stages in range(deepest, 0, -1):
                yield most_rows, keys, 8 if many else 4, stages
        most_rows //= 2


def resident(target: str, sizes: Sizes, cost: Cost) -> int:
    """Return the number of programs that a multiprocessor holds at once."""
    registers, warps = -(-cost["registers"] // 8) * 8, sizes[2]
    if target == "hip":
        return min(4 * min(8, 512 // registers) // warps, (64 << 10) // (cost["shared_bytes"] or 1))
    shared = (SHARED_KIB[target] << 10) // (cost["shared_bytes"] + 1024)
    return int(min(65536 // (registers * 32 * warps), shared, 64 // warps))


def chosen(cell: Cell, cost_of: Callable[[Cell, Sizes], Cost]) -> dict[str, Any]:
    """Return the table's row of a cell: its first candidate that fits."""
    for sizes in candidates(*cell):
        cost = cost_of(cell, sizes)
        programs = resident(cell[0], sizes, cost)
        if cost["stack_bytes"] <= HARMLESS_STACK and programs:
            return row_of(sizes, programs, BY_RESOURCES)
    raise ValueError(f"no candidate fits {cell}")


def row_of(sizes: Sizes, programs: int, origin: str) -> dict[str, Any]:
    """Return a row of the table."""
    names = "rows", "keys", "num_warps", "num_stages", "resident", "origin"
    return dict(zip(names, (*sizes, programs, origin), strict=True))


def compiled(cell: Cell, sizes: Sizes) -> Cost:
    """Return the resources of the kernel with these tiles, for bfloat16 and pages of 16."""
    import kernel_resources as resources
    import triton
    from triton.backends.compiler import GPUTarget

    target = GPUTarget(*resources.TARGETS[TARGETS[cell[0]]])
    source, options = resources.recorded(launch_of(cell, sizes), target)["attend_kernel"]
    binary = triton.compile(source, target=target, options=options)
    measured = resources._amd if target.backend == "hip" else resources._nvidia
    cost = measured(binary.asm) | {"shared_bytes": binary.metadata.shared}
    print(*cell, *sizes, cost, flush=True)
    return {name: cost[name] for name in ("registers", "shared_bytes", "stack_bytes")}


def launch_of(cell: Cell, sizes: Sizes) -> Callable[[], object]:
    """Return a launch of these tiles: decodes in parts, or requests of several queries."""
    from attnproof.optimized.kernels import launches

    _, head, need = cell
    call = launches._attend(0 if need == 16 else 2048 if need == 128 else need // 4, head_size=head)

    def launch() -> None:
        with using(sizes, head, 1), patch(f"{LAUNCH}.splits_for", lambda *_: 1 + 15 * (need == 16)):
            call()

    return launch


def using(sizes: Sizes, head: int, programs: int) -> Any:
    """Return a context in which attention has these tiles."""
    from attnproof.optimized.kernels.paged_attention_tiles import Tiles

    tiles = Tiles(*sizes[:2], head, *sizes[2:], programs)
    return patch(f"{LAUNCH}.tiles_for", lambda *_, **__: tiles)


def fastest(
    cell: Cell,
    row: dict[str, Any],
    cost_of: Callable[[Cell, Sizes], Cost],
    time_of: Callable[[Cell, Sizes, int], float],
    origin: str,
) -> dict[str, Any]:
    """Return the row of the least time, of those that differ from `row` in one size at most."""
    rows, keys, warps, stages = (row[n] for n in ("rows", "keys", "num_warps", "num_stages"))
    tried = [(rows, keys, warps, stages), (rows, keys, 12 - warps, stages)]  # 4 warps or 8
    tried += [
        (each, keys, warps, stages) for each in (rows // 2, rows * 2) if 16 <= each <= cell[2]
    ]
    tried += [(rows, each, warps, stages) for each in (keys // 2, keys * 2) if each >= 16]
    tried += [(rows, keys, warps, each) for each in (stages - 1, stages + 1) if each]
    programs = {sizes: resident(cell[0], sizes, cost_of(cell, sizes)) for sizes in tried}
    times = {sizes: time_of(cell, sizes, many) for sizes, many in programs.items() if many}
    print(*cell, times, flush=True)
    best = min(times, key=lambda sizes: times[sizes])
    return row_of(best, programs[best], origin)


def timed(cell: Cell, sizes: Sizes, programs: int) -> float:
    """Return the geometric mean of the times on the GPU of a row's batches, in milliseconds."""
    import torch
    from triton.testing import do_bench

    from attnproof.optimized import paged_attention

    _, head, need = cell
    batches = DECODES if need == 16 else PREFILLS if need == 128 else ((32, need // 4, 4096),)
    medians = []
    for size, (requests, queries, keys) in product(SIZES[head], batches):
        words, ints = ({"device": "cuda", "dtype": kind} for kind in (torch.bfloat16, torch.int32))
        query = torch.randn(requests * queries, 32, size, **words)
        cache = torch.randn(2, requests * keys // 16, 16, 8, size, **words)
        starts = torch.arange(0, requests * queries + 1, queries, **ints)
        table = torch.randperm(cache.shape[1], **ints).view(requests, -1)
        lens = torch.full((requests,), keys, **ints)
        arguments = query, *cache, starts, lens, table, 0.1
        bounds = {"max_query_len": queries, "max_seq_len": keys, "out": torch.empty_like(query)}
        with using(sizes, head, programs):
            medians.append(
                do_bench(partial(paged_attention, *arguments, **bounds), quantiles=[0.5])
            )
    return statistics.geometric_mean(medians)


def problems() -> list[str]:
    """Return a line for each row of the table that does not follow from the stored resources."""
    table, costs = (json.loads(path.read_text(encoding="utf-8")) for path in (TABLE, RESOURCES))
    return [
        f"{_key(*cell)}: {row} does not follow from {RESOURCES.name}"
        for cell in CELLS
        if (row := table[_key(*cell)])["origin"] == BY_RESOURCES
        and row != chosen(cell, lambda cell, sizes: costs[_key(*cell, *sizes)])
    ]


def _key(*parts: object) -> str:
    return " ".join(map(str, parts))


def write(path: Path, rows: dict[str, Any]) -> None:
    """Write JSON with a line for each row, for readable diffs."""
    lines = [f"{json.dumps(key)}: {json.dumps(row)}" for key, row in rows.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main() -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--compile", action="store_true", help="choose by resources")
    parser.add_argument("--measure", action="store_true", help="choose by times on this GPU")
    options = parser.parse_args()
    os.environ.pop("TRITON_INTERPRET", None)  # before Triton is imported
    sys.path.insert(0, str(ROOT))
    if options.compile:
        costs: dict[str, Cost] = {}

        def cost_of(cell: Cell, sizes: Sizes) -> Cost:
            costs[_key(*cell, *sizes)] = cost = compiled(cell, sizes)
            return cost

        write(TABLE, {_key(*cell): chosen(cell, cost_of) for cell in CELLS})
        write(RESOURCES, costs)
    elif options.measure:
        measure()
    found = problems()
    print("\n".join([*found, f"{len(CELLS)} rows, {len(found)} problems"]))
    return 1 if found else 0


def measure() -> None:
    """Write the fastest rows of this GPU's target."""
    import torch

    from attnproof.optimized.kernels.paged_attention_tiles import target_of

    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()
    origin = f"measured on {torch.cuda.get_device_name()} at {commit}"
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    for cell in CELLS:
        if cell[0] == target_of(torch.device("cuda")):
            table[_key(*cell)] = fastest(cell, table[_key(*cell)], compiled, timed, origin)
            write(TABLE, table)  # a machine may be taken away


if __name__ == "__main__":
    sys.exit(main())
