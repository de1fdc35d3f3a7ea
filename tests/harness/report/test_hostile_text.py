"""Hostile text in every field of a run, against every output of the report."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import junitparser
import msgspec
import pytest
from rich.text import Text

from attnproof.harness.model.run import Run
from attnproof.harness.report import write_report
from attnproof.harness.report.formats.bench_markdown import bench_markdown
from attnproof.harness.report.terminal.bench import bench_text
from attnproof.harness.report.terminal.case import draw_case, draw_difference
from attnproof.harness.report.terminal.sequence import draw_steps
from attnproof.harness.verbs.closing_summary import closing_summary
from attnproof.harness.verbs.messages import complain, print_traceback, say
from attnproof.harness.verbs.progress import line
from attnproof.harness.verbs.screen import Screen
from tests.harness.hostile import HOSTILE, assert_safe
from tests.harness.report.runs import ORACLES, make_deviation

hostile = pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)

KEPT = {
    *("verdict", "cause", "origin", "state", "clock", "kind", "lane", "oracle", "oracles"),
    *("started", "created", "since", "id", "case_id"),
}
"""Fields that are not free text: literals, dates, hashes."""


def infected(run, text):
    """Return the run with `text` after every text that a candidate or a file can choose."""

    def spread(value):
        if isinstance(value, str):
            return value + text
        if isinstance(value, dict):
            return {k: v if k in KEPT else spread(v) for k, v in value.items()}
        return [spread(item) for item in value] if isinstance(value, list | tuple) else value

    return msgspec.convert(spread(msgspec.to_builtins(run)), Run)


@pytest.fixture
def deviating(failing):
    known = [make_deviation("D1", failing.findings[0], oracles=("equality",)), make_deviation("D2")]
    findings, advice = failing.findings[1:], failing.findings[:1]
    return msgspec.structs.replace(failing, findings=findings, advice=advice, deviations=known)


@pytest.fixture(params=["deviating", "sequence", "slower"])
def run(request):
    return request.getfixturevalue(request.param)


class Tags(HTMLParser):
    """The number of tags of each name, and every attribute."""

    def __init__(self, source):
        super().__init__()
        self.counts, self.attributes = {}, []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.attributes += [name for name, _ in attributes]


@pytest.fixture(scope="module")
def plain_reports(tmp_path_factory):
    """Return the folder of the report of each run with harmless text, written once."""
    folders = {}

    def report(name, run):
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp("plain")
            assert write_report(infected(run, "x"), folders[name], oracles=ORACLES) == []
        return folders[name]

    return report


@hostile
def test_every_file_of_the_report(text, run, plain_reports, tmp_path, request):
    plain = plain_reports(request.node.callspec.params["run"], run)
    poisoned = tmp_path
    assert write_report(infected(run, text), poisoned, oracles=ORACLES) == []
    page = (poisoned / "index.html").read_text(encoding="utf-8")
    style, script = page.index("</style>"), page.index("<script>")
    assert_safe(page[style:script])
    shown, expected = Tags(page), Tags((plain / "index.html").read_text(encoding="utf-8"))
    assert shown.counts.keys() == expected.counts.keys()
    assert (shown.counts["script"], shown.counts["style"]) == (1, 1)
    assert set(shown.attributes) == set(expected.attributes)
    summary = (poisoned / "summary.md").read_text(encoding="utf-8")
    assert_safe(summary)
    assert len(summary.splitlines()) == len((plain / "summary.md").read_text().splitlines())
    assert "<script>" not in markdown_outside_of_code(summary)
    document = junitparser.JUnitXml.fromstring((poisoned / "junit.xml").read_bytes())
    assert len(list(document)) == len(junitparser.JUnitXml.fromfile(str(plain / "junit.xml")))
    assert_safe((poisoned / "junit.xml").read_text(encoding="utf-8"))
    loaded = json.loads((poisoned / "summary.json").read_text(encoding="utf-8"))
    assert loaded["verdict"] == run.verdict


def markdown_outside_of_code(text):
    """Return Markdown without its fenced blocks and code spans."""
    kept, fence = [], ""
    for row in text.splitlines():
        if not fence and row.startswith("```"):
            fence = row.rstrip("sh")
        elif fence:
            fence = "" if row == fence else fence
        else:
            pieces, ticks = [], ""
            for piece in re.split(r"((?<!\\)`+)", row):
                if not ticks and piece.startswith("`"):
                    ticks = piece
                elif ticks:
                    ticks = "" if piece == ticks else ticks
                else:
                    pieces.append(piece)
            kept.append("".join(pieces))
    return "\n".join(kept)


@hostile
def test_lines_of_the_terminal(text, run, capsys):
    poisoned, plain = infected(run, text), infected(run, "x")
    say(closing_summary(poisoned, Path(f"out{text}".replace("\0", ""))))
    shown = capsys.readouterr().out
    assert_safe(shown, lines=len(closing_summary(plain, Path("out")).splitlines()) + 1)
    for result in poisoned.operations:
        assert_safe(line(result), lines=1)
    complain(f"no candidate {text}")
    assert_safe(capsys.readouterr().err, lines=2)
    if run.bench:
        assert_safe(bench_text(poisoned), lines=len(bench_text(plain).split("\n")))
        assert_safe(bench_markdown(poisoned), lines=len(bench_markdown(plain).split("\n")))


@hostile
def test_drawings_of_the_terminal(text, run, capsys):
    screen = Screen(soft_wrap=True)
    for finding in infected(run, text).findings:
        screen.print(draw_case(finding.case, finding.outputs))
        screen.print(draw_difference(finding.outputs))
        if finding.steps:
            screen.print(draw_steps(finding.steps, finding.outputs, finding.place))
    screen.print(Text(text))
    screen.print(text)
    screen.print_line(text)
    assert_safe(capsys.readouterr().out)


@hostile
def test_tracebacks(text, capsys):
    try:
        raise type("Error", (Exception,), {})(text)
    except Exception as error:
        print_traceback(error)
    assert_safe(capsys.readouterr().err)


def test_nothing_is_rich_markup(capsys):
    screen = Screen(soft_wrap=True)
    screen.print(HOSTILE["rich"])
    assert capsys.readouterr().out == HOSTILE["rich"] + "\n"
