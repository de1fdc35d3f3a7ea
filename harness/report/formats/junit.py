"""junit.xml: a test case for each finding and each operation without one, for CI systems."""

from __future__ import annotations

from collections import Counter
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
from attnproof.harness.report.shared.finding_text import LONGEST_TEXT, FindingText
from attnproof.harness.report.shared.identity import Identity, identity
from attnproof.harness.report.shared.wording import NO_REASON, listed, many, middle_out, shorten

_NAME = 200
_LOG = 4_000
_REGRESSIONS = 20
"""Maximum number of failures of one test case; index.html has the rest."""


def junit_bytes(run: Run) -> bytes:
    """Return JUnit XML: a suite per candidate, a test case per finding, a skip for no verdict.

    A finding's test case is named by operation and cause, so that it keeps its history; an
    operation without a finding is a test case of its name. An operation whose failures are all
    known deviations is a skip that names them. With a base run, the suite has the property "new
    since base", new findings come first, and their failures say so.
    """
    suites: dict[tuple[str, str], Any] = {}
    for result in _ordered(run):
        where = (result.candidate, result.device)
        suite = suites.get(where) or suites.setdefault(where, _suite(run, *where))
        cases = _testcases(run, result)
        pair = (result.candidate, result.name)
        if known := [d for d in run.deviations if (d.candidate, d.operation) == pair]:
            make = partial(_known, known)
            cases[0].system_out = attempt("the known deviations", make, escape_line)
        suite.add_testcases(cases)
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


def _ordered(run: Run) -> list[OperationResult]:
    """Return the operations, with a base run those with new findings first."""
    new = {finding.pair for finding in run.base.new} if run.base else set()
    return sorted(run.operations, key=lambda result: (result.name, result.candidate) not in new)


def _suite(run: Run, candidate: str, device: str) -> Any:
    suite = junitparser.TestSuite(escape_line(f"{candidate} ({device})"))
    suite.timestamp = escape_line(run.started)
    suite.add_property("verdict", run.verdict)
    suite.add_property("seed", str(run.seed))
    if run.reason:
        suite.add_property("reason", escape_line(run.reason))
    if run.base is not None:
        suite.add_property("base", escape_line(f"{run.base.run} of {run.base.started}"))
        new = sum(finding.candidate == candidate for finding in run.base.new)
        suite.add_property("new since base", str(new))
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
    texts: dict[tuple[str, str], list[str]] = {
        (entry.operation, entry.candidate): [] for entry in result.regressions
    }
    for entry in filter(is_worse, result.regressions):
        texts[entry.operation, entry.candidate].append(_worse(entry, result.state))
    for (operation, candidate), failures in texts.items():
        case = junitparser.TestCase(
            escape_line(operation), classname=escape_line(f"{name}.{candidate}")
        )
        case.result = [junitparser.Failure(text, "performance") for text in failures[:_REGRESSIONS]]
        suite.add_testcase(case)
    return suite


def _incomplete_reason(result: BaselineResult) -> str:
    """Return why the comparison is incomplete, "" if it is complete."""
    lost = f"not timed in this run: {listed(result.lost, 3)}" if result.lost else ""
    return uncompared_reason(result) or lost


def _worse(entry: Regression, state: BaselineState) -> str:
    return escape_line(f"{entry.workload}: {worse_text(entry, state)}")


def _testcases(run: Run, result: OperationResult) -> list[Any]:
    """Return a test case for each finding of the operation, or one for the operation."""
    where = escape_line(f"attnproof.{result.candidate}.{result.device}")
    key = (result.candidate, result.device, result.name)
    findings = [f for f in run.findings if (f.candidate, f.device, f.operation) == key]
    names = _names(findings) if result.verdict == "FAIL" else []
    cases = [junitparser.TestCase(escape_line(n), classname=where) for n in names or [result.name]]
    cases[0].time = round(result.seconds, 3)
    if names:
        for case, finding in zip(cases, findings, strict=True):
            make, bare = partial(_failure, FindingText(finding, run.base)), partial(_bare, finding)
            case.result = [attempt(f"the text of finding {finding.id}", make, bare)]
    elif result.verdict == "FAIL":
        cases[0].result = [junitparser.Failure(_without_finding(result), "FAIL")]
    elif result.verdict == "DEVIATES":
        words = f"DEVIATES: {many(result.known, 'case')} fail by known deviations only"
        cases[0].result = [junitparser.Skipped(words)]
    elif result.verdict != "PASS":
        reason = result.reason or NO_REASON
        cases[0].result = [junitparser.Skipped(escape_line(f"{result.verdict}: {reason}"))]
    return cases


def _names(findings: list[Finding]) -> list[str]:
    """Return the names of the findings' test cases; those of one identity are numbered."""
    seen: Counter[Identity] = Counter()
    names = []
    for finding in findings:
        seen[identity(finding)] += 1
        number = seen[identity(finding)]
        name = f"{finding.operation}: {shorten(finding.cause, _NAME)}"
        names.append(name if number == 1 else f"{name} #{number}")
    return names


def _known(deviations: list[DeviationResult]) -> str:
    return escape_lines("\n".join(map(deviation_line, deviations)))


def _bare(finding: Finding, fault: str) -> Any:
    """Return the failure of a finding whose text could not be made."""
    return junitparser.Failure(escape_line(fault), escape_line(finding.kind))


def _without_finding(result: OperationResult) -> str:
    """Return why an operation failed without a finding, as by a wrong result when timed."""
    return (
        escape_line(shorten(result.reason, LONGEST_TEXT)) or f"{many(result.failed, 'case')} failed"
    )


def _failure(text: FindingText) -> Any:
    finding = text.finding
    message = escape_line(text.if_new("new since base: ") + text.message())
    failure = junitparser.Failure(message, escape_line(finding.kind))
    lines = [
        f"{finding.diagnosis} ({finding.kind}, {finding.oracle} oracle, finding {finding.id})",
        f"shown by: {text.evidence()}",
        f"effect:   {consequence(finding)}",
        f"field:    {finding.field}",
        f"expected: {shorten(finding.expected, LONGEST_TEXT)}",
        f"got:      {shorten(finding.got, LONGEST_TEXT)}",
        f"input:    {shorten(input_size(finding), LONGEST_TEXT)} ({finding.case_path})",
        f"replay:   {finding.command}",
        f"inline:   {text.inline_replay() or 'the case is too long'}",
    ]
    if finding.log:
        lines += ["", middle_out(finding.log, _LOG)]
    failure.text = escape_lines("\n".join(lines))
    return failure
