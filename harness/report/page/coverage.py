"""The section on the inputs: values of the features, the map of pairs, and the gaps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from attnproof.harness.model.run import Run
from attnproof.harness.report.charts.figure import Chart, Table
from attnproof.harness.report.charts.input_map import input_map
from attnproof.harness.report.shared.coverage import CELLS, Coverage, Gap, build_coverage
from attnproof.harness.report.shared.wording import listed, many

_MOST_GAPS = 40
"""Pairs in the table of gaps; summary.json has more."""
_MOST_OPERATIONS = 4
"""Operations that a row of the table names."""
_ORIGINS = {
    "fuzz": "drawn",
    "boundary": "boundaries",
    "corpus": "corpus",
    "trace": "traces",
    "recorded": "recordings",
}


class State(NamedTuple):
    """What a run has of a value: a glyph beside its name, and its meaning."""

    key: str
    glyph: str
    meaning: str


_STATES = {
    state.key: state
    for state in (
        State("tested", "", "tests have it; no engine step of this run has"),
        State("seen", "●", "engine steps and the tests of all their operations have it"),
        State("partly", "○", "engine steps have it, and the tests of some operations lack it"),
        State("unseen", "✕", "engine steps have it and no test has"),
        State("empty", "", "no case has it"),
    )
}


class Value(NamedTuple):
    """A value of a feature."""

    name: str
    state: State


class Values(NamedTuple):
    """A feature and its values."""

    title: str
    values: tuple[Value, ...]


class InputSection(NamedTuple):
    """The section's contents."""

    sentence: str
    states: tuple[State, ...]
    features: tuple[Values, ...]
    """Features that a case has."""
    chart: Chart
    values: Table
    """Values of engine steps that tests lack."""
    pairs: Table
    """The same of pairs whose values are tested apart."""
    more: str
    """A sentence on pairs that the table leaves out, "" without."""
    counts: Table


def build_inputs(run: Run) -> InputSection | None:
    """Return the section, None if the run counted no case, or none with a feature."""
    coverage = build_coverage(run.operations)
    if coverage is None or not (coverage.tested.any() or coverage.real.any()):
        return None
    single = [gap for gap in coverage.gaps if len(gap.cells) == 1]
    pairs = coverage.gaps[len(single) :]
    left = len(pairs[_MOST_GAPS:])
    return InputSection(
        _sentence(coverage, len(single)),
        tuple(_STATES.values()),
        tuple(_features(coverage)),
        input_map(coverage),
        _gap_table("Value", single),
        _gap_table("Pair of values", pairs[:_MOST_GAPS]),
        f"{many(left, 'more pair')}: summary.json names some of them." if left else "",
        _count_table(coverage),
    )


def _sentence(coverage: Coverage, single: int) -> str:
    if not coverage.operations:
        return (
            "No engine step was run: the map shows the features of the tests alone. "
            "attnproof verify takes engine steps with --steps, --trace and --recorded."
        )
    real, tested = coverage.num_pairs
    share = f"{tested:,} of the {real:,} pairs of features of real engine steps"
    apart = len(coverage.gaps) - single
    return (
        f"Tests have {share} ({tested / max(real, 1):.1%}), counted over all operations. "
        f"Operation by operation, {many(single, 'value')} and {many(apart, 'pair')} of values that "
        f"are tested apart are missing in the tests of at least one of "
        f"{many(coverage.operations, 'operation')}."
    )


def _features(coverage: Coverage) -> list[Values]:
    features = []
    for title, group in groupby(CELLS, key=lambda cell: cell.feature):
        values = tuple(Value(cell.value, _state(coverage, cell.number)) for cell in group)
        if any(value.state.key != "empty" for value in values):
            features.append(Values(title, values))
    return features


def _state(coverage: Coverage, number: int) -> State:
    tested = coverage.tested[number, number] > 0
    if not coverage.real[number, number]:
        return _STATES["tested" if tested else "empty"]
    if not tested:
        return _STATES["unseen"]
    return _STATES["partly" if coverage.lacking[number, number] else "seen"]


def _gap_table(kind: str, gaps: Sequence[Gap]) -> Table:
    rows = tuple(
        (
            " with ".join(cell.words for cell in gap.cells),
            "none" if gap.nowhere else "others",
            f"{len(gap.operations):,}: {listed(gap.operations, _MOST_OPERATIONS)}",
            f"{gap.cases:,}",
        )
        for gap in gaps
    )
    head = (kind, "Tested by", "Missing in the tests of", "Cases of engine steps")
    return Table(f"{kind} of engine steps that tests of an operation lack", head, rows)


def _count_table(coverage: Coverage) -> Table:
    origins = [origin for origin in _ORIGINS if origin in coverage.by_origin]
    rows = tuple(
        (cell.words, *(f"{int(coverage.by_origin[origin][cell.number]):,}" for origin in origins))
        for cell in CELLS
        if any(coverage.by_origin[origin][cell.number] for origin in origins)
    )
    head = ("Value", *(_ORIGINS[origin] for origin in origins))
    return Table("Cases of all operations and candidates that have a value, by origin", head, rows)
