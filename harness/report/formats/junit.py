"""junit.xml: a test case for each operation of each candidate, for CI systems."""

from __future__ import annotations

from functools import partial
from typing import Any

import junitparser

from attnproof.harness.escaping import escape_line, escape_lines
from attnproof.harness.guard import attempt
from attnproof.harness.model.run import DeviationResult, Finding, OperationResult, Run
from attnproof.harness.model.timing import BaselineResult, BaselineState, Regression
from attnproof.harness.report.pictures.sequence_input import input_size
from attnproof.harness.report.shared.baseline import is_worse, uncompared_reason, worse_text
from attnproof.harness.report.shared.consequences import consequence
from attnproof.harness.report.shared.deviations import deviation_line
from attnproof.harness.report.shared.evidence import evidence
from attnproof.harness.report.shared.wording import (
    NO_REASON,
    listed,
    many,
    middle_out,
    shorten,
)

_MESSAGE = 1_000
_LOG = 4_000
_REGRESSIONS = 20
"""Maximum number of failures of one test case; index.html has the rest."""


def junit_bytes(run: Run) -> bytes:
    """Return JUnit XML: a suite per candidate, a failure per finding, a skip for no verdict.

    An operation whose failures are all known deviations is a skip that names them.
    """
    findings: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in run.findings:
        key = (finding.candidate, finding.device, finding.operation)
        findings.setdefault(key, []).append(finding)
    deviations: dict[tuple[str, str], list[DeviationResult]] = {}
    for deviation in run.deviations:
        pair = (deviation.candidate, deviation.operation)
        deviations.setdefault(pair, []).append(deviation)
    suites: dict[tuple[str, str], Any] = {}
    for result in run.operations:
        where = (result.candidate, result.device)
        suite = suites.get(where) or suites.setdefault(where, _suite(run, *where))
        case = _testcase(result, findings.get((*where, result.name), []))
        if known := deviations.get((result.candidate, result.name)):
            case.system_out = attempt("the known deviations", partial(_known, known), escape_line)
        suite.add_testcase(case)
    document = junitparser.JUnitXml("attnproof")
    for suite in suites.values():
        document.add_testsuite(suite)
    if run.bench and run.bench.baseline.state != "not asked for":
        make = partial(_performance, run, run.bench.baseline)
        document.add_testsuite(
            attempt("the performance", make, lambda fault: _incomparable(run, fault))
        )
    document.update_statistics()
    # One element per line makes a diff readable.
    text: bytes = document.tostring()
    return text.replace(b"><", b">\n<") + b"\n"


def _suite(run: Run, candidate: str, device: str) -> Any:
    suite = junitparser.TestSuite(escape_line(f"{candidate} ({device})"))
    suite.timestamp = escape_line(run.started)
    suite.add_property("verdict", run.verdict)
    suite.add_property("seed", str(run.seed))
    if run.reason:
        suite.add_property("reason", escape_line(run.reason))
    return suite


def _incomparable(run: Run, fault: str) -> Any:
    """Return the suite of the comparison if it could not be made: a failure if it is slower."""
    suite = junitparser.TestSuite("performance")
    case = junitparser.TestCase("comparison", classname="performance")
    kind = junitparser.Failure if run.verdict == "SLOWER" else junitparser.Skipped
    case.result = [kind(escape_line(fault))]
    suite.add_testcase(case)
    return suite


def _performance(run: Run, result: BaselineResult) -> Any:
    """Return a test case for the comparison, then one per operation and candidate."""
    name = escape_line(f"performance against baseline {result.name}")
    suite = junitparser.TestSuite(name)
    suite.timestamp = escape_line(run.started)
    suite.add_property("state", result.state)
    comparison = junitparser.TestCase("comparison", classname=name)
    if missing := _incomplete_reason(result):
        comparison.result = [junitparser.Skipped(escape_line(f"INCOMPLETE: {missing}"))]
    suite.add_testcase(comparison)
    entries: dict[tuple[str, str], list[Regression]] = {}
    for entry in result.regressions:
        entries.setdefault((entry.operation, entry.candidate), []).append(entry)
    for (operation, candidate), found in entries.items():
        case = junitparser.TestCase(
            escape_line(operation), classname=escape_line(f"{name}.{candidate}")
        )
        texts = [_worse(entry, result.state) for entry in found if is_worse(entry)]
        case.result = [junitparser.Failure(text, "performance") for text in texts[:_REGRESSIONS]]
        suite.add_testcase(case)
    return suite


def _incomplete_reason(result: BaselineResult) -> str:
    """Return why the comparison is incomplete, "" if it is complete."""
    lost = f"not timed in this run: {listed(result.lost, 3)}" if result.lost else ""
    return uncompared_reason(result) or lost


def _worse(entry: Regression, state: BaselineState) -> str:
    return escape_line(f"{entry.workload}: {worse_text(entry, state)}")


def _testcase(result: OperationResult, findings: list[Finding]) -> Any:
    where = escape_line(f"attnproof.{result.candidate}.{result.device}")
    case = junitparser.TestCase(
        escape_line(result.name), classname=where, time=round(result.seconds, 3)
    )
    if result.verdict == "FAIL":
        case.result = [
            attempt(f"the text of finding {one.id}", partial(_failure, one), partial(_bare, one))
            for one in findings
        ] or [junitparser.Failure(_without_finding(result), "FAIL")]
    elif result.verdict == "DEVIATES":
        words = f"DEVIATES: {many(result.known, 'case')} fail by known deviations only"
        case.result = [junitparser.Skipped(words)]
    elif result.verdict != "PASS":
        reason = result.reason or NO_REASON
        case.result = [junitparser.Skipped(escape_line(f"{result.verdict}: {reason}"))]
    return case


def _known(deviations: list[DeviationResult]) -> str:
    return escape_lines("\n".join(map(deviation_line, deviations)))


def _bare(finding: Finding, fault: str) -> Any:
    """Return the failure of a finding whose text could not be made."""
    return junitparser.Failure(escape_line(fault), escape_line(finding.kind))


def _without_finding(result: OperationResult) -> str:
    """Return why an operation failed without a finding, as by a wrong result when timed."""
    return escape_line(shorten(result.reason, _MESSAGE)) or f"{many(result.failed, 'case')} failed"


def _failure(finding: Finding) -> Any:
    failure = junitparser.Failure(
        escape_line(shorten(finding.message, _MESSAGE)), escape_line(finding.kind)
    )
    lines = [
        f"{finding.diagnosis} ({finding.kind}, {finding.oracle} oracle, finding {finding.id})",
        f"shown by: {evidence(finding)}",
        f"effect:   {consequence(finding)}",
        f"field:    {finding.field}",
        f"expected: {shorten(finding.expected, _MESSAGE)}",
        f"got:      {shorten(finding.got, _MESSAGE)}",
        f"input:    {shorten(input_size(finding), _MESSAGE)} ({finding.case_path})",
        f"replay:   {finding.command}",
    ]
    if finding.log:
        lines += ["", middle_out(finding.log, _LOG)]
    failure.text = escape_lines("\n".join(lines))
    return failure
