"""The files of the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from html import escape
from pathlib import Path

import msgspec

from attnproof.harness.escaping import escape_line, markdown_text
from attnproof.harness.guard import attempt, collected_faults
from attnproof.harness.model.run import Run
from attnproof.harness.report.formats.markdown import run_markdown
from attnproof.harness.report.formats.sarif import sarif_bytes
from attnproof.harness.report.formats.summary import write_summary
from attnproof.harness.report.shared.files import replace_file

_OPTIONAL = ("jinja2", "markupsafe", "junitparser")


def write_report(run: Run, out_dir: Path, *, oracles: Mapping[str, str] | None = None) -> list[str]:
    """Write the files of the report into the existing `out_dir`.

    These are summary.json, summary.md, junit.xml, results.sarif and index.html. `oracles` maps
    the name of each oracle to its contract in a sentence, in the order of the report. Each file
    is replaced in one step. Return a sentence for each file that was not written because jinja2
    or junitparser is not installed (the summaries need neither), and for each part that could not
    be made; summary.json has these as notes. Raise FileNotFoundError if `out_dir` is missing.
    """

    def junit() -> bytes:
        from attnproof.harness.report.formats.junit import junit_bytes

        return attempt("junit.xml", lambda: junit_bytes(run), lambda fault: _junit(run, fault))

    def html() -> bytes:
        from attnproof.harness.report.page.html import render_html

        page = attempt("index.html", lambda: render_html(run, oracles or {}), partial(_page, run))
        return page.encode("utf-8")

    with collected_faults() as faults:
        # First, because a program that reads the verdict needs nothing else.
        write_summary(run, out_dir / "summary.json")
        text = attempt("summary.md", lambda: run_markdown(run), partial(_text, run))
        replace_file(out_dir / "summary.md", text.encode("utf-8"))
        sarif = attempt("results.sarif", lambda: sarif_bytes(run), partial(_sarif, run))
        replace_file(out_dir / "results.sarif", sarif)
        missing = [_write(out_dir / "junit.xml", junit), _write(out_dir / "index.html", html)]
    if faults:
        noted = msgspec.structs.replace(run, notes=[*run.notes, *faults])
        write_summary(noted, out_dir / "summary.json")
    return [reason for reason in [*missing, *faults] if reason]


def _text(run: Run, fault: str) -> str:
    """Return a summary.md with the verdict alone."""
    return f"## attnproof: {run.verdict}\n\n{markdown_text(fault)}\n"


def _page(run: Run, fault: str) -> str:
    """Return an index.html with the verdict alone."""
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8">'
        f"<title>{run.verdict} · attnproof</title>"
        f"<h1>attnproof {run.verdict}</h1><p>{escape(escape_line(fault))}</p></html>\n"
    )


def _junit(run: Run, fault: str) -> bytes:
    """Return a junit.xml with the verdict alone: a failure, unless the run passed."""
    words = escape(escape_line(f"{run.verdict}: {fault}"))
    result = "" if run.verdict == "PASS" else f'<failure message="{words}"/>'
    suite = f'<testsuite name="attnproof"><testcase name="verdict">{result}</testcase></testsuite>'
    return f"<testsuites>{suite}</testsuites>\n".encode()


def _sarif(run: Run, fault: str) -> bytes:
    """Return a results.sarif with the verdict alone: an error, unless the run passed."""
    level = "none" if run.verdict == "PASS" else "error"
    result = {"level": level, "message": {"text": escape_line(f"{run.verdict}: {fault}")}}
    tool = {"driver": {"name": "attnproof"}}
    document = {"version": "2.1.0", "runs": [{"tool": tool, "results": [result]}]}
    return msgspec.json.encode(document) + b"\n"


def _write(path: Path, render: Callable[[], bytes]) -> str:
    """Write the bytes of `render`; return a reason if a package is not installed, else ""."""
    try:
        data = render()
    except ModuleNotFoundError as error:
        if error.name not in _OPTIONAL:
            raise
        return f"{path.name} was not written: {error.name} is not installed"
    replace_file(path, data)
    return ""
