"""The coverage of the input space in summary.json."""

from __future__ import annotations

from collections.abc import Iterable

from attnproof.harness.cases.coverage.features import FEATURES
from attnproof.harness.model.run import OperationResult
from attnproof.harness.report.formats.summary_part import SummaryPart
from attnproof.harness.report.shared.coverage import CELLS, build_coverage

_MOST_PAIRS = 100
"""Pairs that are named; the others are counted."""


class SummaryValue(SummaryPart, kw_only=True):
    """A value of a feature."""

    value: str
    cases: dict[str, int]
    """Cases that have it, by origin: those of all operations and candidates."""


class SummaryFeature(SummaryPart, kw_only=True):
    """A feature of the input and its values."""

    key: str
    title: str
    values: list[SummaryValue]


class SummaryGap(SummaryPart, kw_only=True):
    """Values that real batches have together, and no test of some operations has."""

    values: dict[str, str]
    """Value of one feature or of two, by the feature's key."""
    operations: tuple[str, ...]
    """Operations whose tests do not have them."""
    cases: int
    """Cases of real batches of these operations that have them."""
    nowhere: bool
    """True if the tests of no operation have them."""


class SummaryCoverage(SummaryPart, kw_only=True):
    """Features of the inputs of a run. Real: of engine steps of traces and of recordings."""

    operations: int
    """Operations with a real batch."""
    pairs_real: int
    """Pairs of values of two features that real batches have."""
    pairs_tested: int
    """Those of them that a test of any operation has."""
    features: list[SummaryFeature]
    gaps: list[SummaryGap]
    """Values that no test of an operation has, then pairs of values that are tested apart."""
    more_gaps: int
    """Pairs that are not in `gaps`."""


def summarize_coverage(results: Iterable[OperationResult]) -> SummaryCoverage | None:
    """Return the coverage of a run, None if no case was counted."""
    coverage = build_coverage(results)
    if coverage is None:
        return None
    values: dict[str, list[SummaryValue]] = {}
    for cell in CELLS:
        cases = {origin: int(n[cell.number]) for origin, n in coverage.by_origin.items()}
        counted = {origin: number for origin, number in cases.items() if number}
        values.setdefault(cell.key, []).append(SummaryValue(value=cell.value, cases=counted))
    single = sum(len(gap.cells) == 1 for gap in coverage.gaps)
    named = coverage.gaps[: single + _MOST_PAIRS]
    real, tested = coverage.num_pairs
    return SummaryCoverage.of(
        coverage,
        pairs_real=real,
        pairs_tested=tested,
        features=[SummaryFeature.of(feature, values=values[feature.key]) for feature in FEATURES],
        gaps=[
            SummaryGap.of(gap, values={cell.key: cell.value for cell in gap.cells}) for gap in named
        ],
        more_gaps=len(coverage.gaps) - len(named),
    )
