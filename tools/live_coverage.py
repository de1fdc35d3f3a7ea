"""Print which part of the map of inputs recorded batches fill, feature by feature.

python tools/live_coverage.py reports/live-0.32/recordings/*
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from attnproof.harness.cases.coverage.features import cells_of
from attnproof.harness.cases.recorded.batches import batch_of_build
from attnproof.harness.cases.recorded.reading import recorded_steps, recording_files
from attnproof.harness.cases.recorded.values import ValueProblem, metadata_of
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.report.shared.coverage import CELLS, PAIRS

ARGUMENTS = frozenset(
    ("chunk_end", "chunks", "window", "ranks", "rank", "heads", "groups", "steps")
)
"""Features of an operation's arguments, which a batch alone has not."""
OF_BATCHES = np.array([cell.key not in ARGUMENTS for cell in CELLS])
"""(cells,) True for the values that a batch may have."""


class Filled(NamedTuple):
    """What batches fill of the map."""

    batches: int
    cells: np.ndarray
    """(cells,) batches that have the value."""
    pairs: np.ndarray
    """(cells, cells) True if a batch has both values."""


def filled_cells(files: Iterable[Path]) -> Filled:
    """Return what the batches of recordings fill; a batch that cannot be said is left out."""
    masks = [cells_of(Case("", batch)) for file in files for batch in _batches(file)]
    bits = np.array(
        [[mask >> cell.number & 1 for cell in CELLS] for mask in masks], np.float32
    ).reshape(len(masks), len(CELLS))
    return Filled(len(masks), bits.sum(axis=0).astype(int), (bits.T @ bits > 0) & PAIRS)


def _batches(file: Path) -> Iterator[Batch]:
    for step in recorded_steps(file, []):
        for build in step.builds:
            try:
                yield batch_of_build(build, metadata_of(build.cam))
            except (ValueProblem, ValueError, TypeError):
                continue  # `attnproof verify --recorded` names it


def summary(filled: Filled) -> Iterator[str]:
    """Yield the fraction of values and pairs, then the values that no batch has."""
    possible = PAIRS & OF_BATCHES[:, None] & OF_BATCHES[None, :]
    values, pairs = int((filled.cells > 0).sum()), int(filled.pairs.sum())
    yield (
        f"inputs: {filled.batches:,} recorded batches fill {values} of {OF_BATCHES.sum()} values "
        f"of batches ({values / OF_BATCHES.sum():.0%}) and {pairs:,} of {possible.sum():,} pairs "
        f"({pairs / possible.sum():.0%})"
    )
    for title, group in groupby(CELLS, key=lambda cell: cell.feature):
        cells = [cell for cell in group if OF_BATCHES[cell.number]]
        absent = [cell.value for cell in cells if not filled.cells[cell.number]]
        if cells:
            has = f"{len(cells) - len(absent)} of {len(cells)}"
            yield f"    {title}: {has}" + (f"; never {', '.join(absent)}" if absent else "")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what files, or folders of them, fill."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recordings", nargs="+", type=Path)
    options = parser.parse_args(arguments)
    files = [file for path in options.recordings for file in recording_files(path)]
    print("\n".join(summary(filled_cells(files))))


if __name__ == "__main__":
    main()
