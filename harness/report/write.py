"""Writes the report of a run into its folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from attnproof.harness.model.run import Run
from attnproof.harness.report.formats.markdown import markdown_text
from attnproof.harness.report.formats.summary import write_summary
from attnproof.harness.report.shared.files import replace_file

_OPTIONAL = ("jinja2", "markupsafe", "junitparser")


def write_report(run: Run, out_dir: Path, *, oracles: Mapping[str, str] | None = None) -> list[str]:
    """Write summary.json, summary.md, junit.xml and index.html into the existing `out_dir`.

    `oracles` maps the name of each oracle to its contract in a sentence, in the order in
    which the report shows them. Each file is replaced in one step. Returns what was not
    written and why, a sentence each: a machine without jinja2 or junitparser still gets the
    summaries. FileNotFoundError if `out_dir` is missing.
    """

    def junit() -> bytes:
        from attnproof.harness.report.formats.junit import junit_bytes

        return junit_bytes(run)

    def html() -> bytes:
        from attnproof.harness.report.page.html import render_html

        return render_html(run, oracles or {}).encode("utf-8")

    write_summary(run, out_dir / "summary.json")
    replace_file(out_dir / "summary.md", markdown_text(run).encode("utf-8"))
    missing = [_write(out_dir / "junit.xml", junit), _write(out_dir / "index.html", html)]
    return [reason for reason in missing if reason]


def _write(path: Path, render: Callable[[], bytes]) -> str:
    """Write what `render` gives; the reason if a package that it needs is not installed."""
    try:
        data = render()
    except ModuleNotFoundError as error:
        if error.name not in _OPTIONAL:
            raise
        return f"{path.name} was not written: {error.name} is not installed"
    replace_file(path, data)
    return ""
