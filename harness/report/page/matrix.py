"""The matrix: operations and candidates against oracles, with the sum of each state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from attnproof.harness.model.run import DeviationResult, Finding, OperationResult, Run
from attnproof.harness.report.shared.wording import GLYPHS, NO_REASON, STATES, many

Key = tuple[str, str, str]
"""Operation, candidate, device."""
_JUDGED = ("PASS", "FAIL", "DEVIATES")


class Link(NamedTuple):
    """A link to the card of a finding, "F2", or of a known deviation, "D1"."""

    label: str
    href: str


_KNOWN = "known "
"""Prefix of the oracle in a link to a known deviation."""
Links = dict[tuple[Key, str], tuple[Link, ...]]
"""Links to the cards by operation, candidate, device and oracle."""


class MatrixCell(NamedTuple):
    """The result of one oracle on one operation and candidate."""

    state: str
    glyph: str
    words: str
    reason: str
    links: tuple[Link, ...] = ()


class MatrixRow(NamedTuple):
    """One candidate of an operation; `cells` is empty if no oracle judged it."""

    candidate: str
    device: str
    verdict: str
    glyph: str
    cases: int
    reason: str
    cells: tuple[MatrixCell, ...]


class MatrixGroup(NamedTuple):
    """One operation with its candidates."""

    name: str
    section: str
    rows: tuple[MatrixRow, ...]

    @property
    def offered(self) -> tuple[MatrixRow, ...]:
        """The rows of the candidates that offer the operation."""
        return tuple(row for row in self.rows if row.verdict != "NOT OFFERED")


class Total(NamedTuple):
    """The number of occurrences of a state, over all pairs and for each oracle."""

    state: str
    glyph: str
    pairs: int
    by_oracle: tuple[int, ...]


class Matrix(NamedTuple):
    """The whole table."""

    oracles: tuple[str, ...]
    groups: tuple[MatrixGroup, ...]
    totals: tuple[Total, ...]


def build_matrix(run: Run, known: Iterable[str]) -> Matrix:
    """Return the table of `run`: first the oracles in the order of `known`, then the others."""
    oracles = _oracle_names(run, known)
    links = _finding_links(run.findings) | _deviation_links(run.deviations)
    groups: dict[str, list[OperationResult]] = {}
    for result in run.operations:
        groups.setdefault(result.name, []).append(result)
    return Matrix(
        oracles,
        tuple(
            MatrixGroup(name, results[0].section, tuple(_row(r, oracles, links) for r in results))
            for name, results in groups.items()
        ),
        tuple(_total(state, run, oracles, links) for state in STATES),
    )


def _finding_links(findings: list[Finding]) -> Links:
    """Return links to the cards by operation, candidate, device and oracle."""
    links: Links = {}
    for number, finding in enumerate(findings, 1):
        key = ((finding.operation, finding.candidate, finding.device), finding.oracle)
        link = Link(f"F{number}", f"#/finding/{finding.id}")
        links[key] = (*links.get(key, ()), link)
    return links


def _deviation_links(deviations: list[DeviationResult]) -> Links:
    """Return links to the cards of known deviations, with `_KNOWN` before the oracle."""
    links: Links = {}
    for number, deviation in enumerate(deviations, 1):
        if deviation.shown is None:
            continue
        pair = (deviation.operation, deviation.candidate, deviation.shown.device)
        link = Link(f"D{number}", f"#/finding/{deviation.shown.id}")
        for oracle in deviation.oracles:
            key = (pair, f"{_KNOWN}{oracle}")
            links[key] = (*links.get(key, ()), link)
    return links


def _oracle_names(run: Run, known: Iterable[str]) -> tuple[str, ...]:
    used = dict.fromkeys(name for result in run.operations for name in result.oracles)
    used.update(dict.fromkeys(finding.oracle for finding in run.findings))
    first = [name for name in known if name in used]
    return tuple(dict.fromkeys([*first, *used]))


def _row(result: OperationResult, oracles: tuple[str, ...], links: Links) -> MatrixRow:
    cells = tuple(_cell(result, oracle, links) for oracle in oracles)
    judged = any(cell.state in _JUDGED for cell in cells)
    return MatrixRow(
        candidate=result.candidate,
        device=result.device,
        verdict=result.verdict,
        glyph=GLYPHS[result.verdict],
        cases=result.cases,
        reason=result.reason or ("" if result.verdict in _JUDGED else NO_REASON),
        cells=cells if judged or result.verdict in _JUDGED else (),
    )


def _cell(result: OperationResult, oracle: str, links: Links) -> MatrixCell:
    """Return a failure if there is one, else known deviations, a pass, or a missing check."""
    pair = (result.name, result.candidate, result.device)
    failures, known = links.get((pair, oracle), ()), links.get((pair, f"{_KNOWN}{oracle}"), ())
    count = result.oracles.get(oracle)
    if failures or (count and count.failed):
        words = f"{count.failed:,} of {count.checks:,}" if count and count.failed else "failed"
        return MatrixCell("FAIL", GLYPHS["FAIL"], words, "", (*failures, *known))
    if known or (count and count.known):
        words = f"{count.known:,} of {count.checks:,} known" if count else "known"
        return MatrixCell("DEVIATES", GLYPHS["DEVIATES"], words, "", known)
    if count and count.checks:
        return MatrixCell("PASS", GLYPHS["PASS"], f"{count.checks:,}", "")
    if result.verdict == "NOT OFFERED":
        return MatrixCell("NOT OFFERED", GLYPHS["NOT OFFERED"], "not offered", result.reason)
    if count or result.verdict == "UNVERIFIED":
        reason = (count.reason if count else "") or result.reason or "no check was made"
        return MatrixCell("UNVERIFIED", GLYPHS["UNVERIFIED"], "unverified", reason)
    return MatrixCell("NO CHECK", GLYPHS["NO CHECK"], "n/a", "")


def _total(state: str, run: Run, oracles: tuple[str, ...], links: Links) -> Total:
    return Total(
        state,
        GLYPHS[state],
        sum(result.verdict == state for result in run.operations),
        tuple(
            sum(_cell(result, oracle, links).state == state for result in run.operations)
            for oracle in oracles
        ),
    )


class Skip(NamedTuple):
    """A reason for missing verdicts, and the entries that it concerns."""

    state: str
    glyph: str
    reason: str
    entries: tuple[str, ...]
    size: str


def skips(matrix: Matrix) -> tuple[Skip, ...]:
    """Return every entry without a verdict, grouped by state and reason."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for group in matrix.groups:
        for row in group.rows:
            name = f"{group.name} · {row.candidate} ({row.device})"
            if not row.cells or row.verdict == "NOT OFFERED":
                grouped.setdefault((row.verdict, row.reason), []).append(name)
                continue
            for oracle, cell in zip(matrix.oracles, row.cells, strict=True):
                if cell.state == "UNVERIFIED":
                    grouped.setdefault((cell.state, cell.reason), []).append(f"{name}: {oracle}")
    ordered = sorted(grouped.items(), key=lambda item: (STATES.index(item[0][0]), item[0][1]))
    return tuple(
        Skip(state, GLYPHS[state], reason, tuple(what), many(len(what), "entry", "entries"))
        for (state, reason), what in ordered
    )
