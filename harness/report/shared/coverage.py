"""Coverage of the input space: which cells tests fill, and which only real batches do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from attnproof.harness.cases.coverage.features import FEATURES, STARTS
from attnproof.harness.model.case import REAL
from attnproof.harness.model.run import OperationResult

_CELLS = STARTS[-1]


class Cell(NamedTuple):
    """A value of a feature."""

    number: int
    """Position among the cells of all features."""
    key: str
    feature: str
    value: str

    @property
    def words(self) -> str:
        """Feature and value."""
        return f"{self.feature}: {self.value}"


_VALUES = [(feature, value) for feature in FEATURES for value in feature.values]
CELLS: tuple[Cell, ...] = tuple(
    Cell(number, feature.key, feature.title, value)
    for number, (feature, value) in enumerate(_VALUES)
)


class Gap(NamedTuple):
    """A cell, or a pair of cells, that real batches fill and the tests of an operation do not."""

    cells: tuple[Cell, ...]
    operations: tuple[str, ...]
    """Operations whose tests do not fill it."""
    cases: int
    """Cases of real batches of those operations that fill it."""
    nowhere: bool
    """True if the tests of no operation fill it."""


class Coverage(NamedTuple):
    """What the cases of a run fill; the index of each array is the number of a cell."""

    by_origin: dict[str, np.ndarray]
    """(cells,) cases of each origin that fill a cell."""
    tested: np.ndarray
    """(cells, cells) tests that fill both cells; on the diagonal, the cell."""
    real: np.ndarray
    """(cells, cells) cases of real batches that fill both."""
    lacking: np.ndarray
    """(cells, cells) operations with cases of real batches that fill both, and no test."""
    gaps: tuple[Gap, ...]
    """First single cells, then pairs of cells of which each is tested; the most frequent first."""
    operations: int
    """Operations with a case of a real batch."""

    @property
    def num_pairs(self) -> tuple[int, int]:
        """Pairs of cells of two features that real batches fill, and those tested somewhere."""
        real = (self.real > 0) & PAIRS
        return int(real.sum()), int((real & (self.tested > 0)).sum())


_KEYS = np.array([cell.key for cell in CELLS])
PAIRS: np.ndarray = np.triu(_KEYS[:, None] != _KEYS[None, :])
"""(cells, cells), True for two cells of two features, once each."""


def build_coverage(results: Iterable[OperationResult]) -> Coverage | None:
    """Return the coverage of a run, None if no case was counted."""
    counts = _by_operation(results)
    if not counts:
        return None
    by_origin: dict[str, np.ndarray] = {}
    tested, real, lacking = (np.zeros((_CELLS, _CELLS), np.int64) for _ in range(3))
    missing: dict[str, np.ndarray] = {}
    seen: dict[str, np.ndarray] = {}
    for name, origins in counts.items():
        own = {kind: np.zeros((_CELLS, _CELLS), np.int64) for kind in ("tested", "real")}
        for origin, masks in origins.items():
            filled = _filled(masks)
            own["real" if origin in REAL else "tested"] += filled
            by_origin[origin] = by_origin.get(origin, 0) + filled.diagonal()
        tested += own["tested"]
        real += own["real"]
        if own["real"].any():
            seen[name] = own["real"]
            missing[name] = (own["real"] > 0) & (own["tested"] == 0)
            lacking += missing[name]
    gaps = _gaps(missing, seen, tested)
    return Coverage(by_origin, tested, real, lacking, gaps, len(seen))


def _by_operation(results: Iterable[OperationResult]) -> dict[str, dict[str, Counter[str]]]:
    """Return cases by operation, origin and mask: those of all candidates together.

    Some candidates get a share of the cases only.
    """
    counts: dict[str, dict[str, Counter[str]]] = {}
    for result in results:
        for origin, masks in result.features.items():
            own = counts.setdefault(result.name, {}).setdefault(origin, Counter())
            own.update(masks)
    return counts


def _filled(masks: Mapping[str, int]) -> np.ndarray:
    """Return (cells, cells) cases that fill both cells."""
    size = -(-_CELLS // 8)
    packed = b"".join(int(mask, 16).to_bytes(size, "little") for mask in masks)
    bits = np.frombuffer(packed, np.uint8).reshape(len(masks), size)
    # Products of floats are a hundred times as fast as those of integers, and exact here.
    filled = np.unpackbits(bits, axis=1, bitorder="little")[:, :_CELLS].astype(np.float64)
    times = np.array(list(masks.values()), np.float64)
    together: np.ndarray = (filled.T @ (filled * times[:, None])).astype(np.int64)
    return together


def _gaps(
    missing: dict[str, np.ndarray], seen: dict[str, np.ndarray], tested: np.ndarray
) -> tuple[Gap, ...]:
    """Return the gaps of all operations, by cell and by pair."""
    operations: dict[tuple[int, int], list[str]] = {}
    for name, absent in missing.items():
        alone = absent.diagonal()
        # A pair says nothing new if one of its cells is missing.
        pairs = absent & PAIRS & ~alone[:, None] & ~alone[None, :]
        for first, second in np.argwhere(pairs | np.diag(alone)).tolist():
            operations.setdefault((first, second), []).append(name)
    gaps = [
        Gap(
            tuple(CELLS[cell] for cell in dict.fromkeys(place)),
            tuple(names),
            int(sum(seen[name][place] for name in names)),
            not tested[place],
        )
        for place, names in operations.items()
    ]
    return tuple(
        sorted(gaps, key=lambda gap: (len(gap.cells), not gap.nowhere, -len(gap.operations)))
    )
