"""The files of the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from attnproof.harness.model.run import Run
from attnproof.harness.report.formats.markdown import run_markdown
from attnproof.harness.report.formats.summary import write_summary
from attnproof.harness.report.shared.files import replace_file

_OPTIONAL = ("jinja2", "markupsafe", "junitparser")


def write_report(run: Run, out_dir: Path, *, oracles: Mapping[str, str] | None = None) -> list[str]:
    """Write summary.json, summary.md, junit.xml and index.html into the existing `out_dir`.

    `oracles` maps the name of each oracle to its contract in a sentence, in the order of the
    report. Each file is replaced in one step. Return a sentence for each file that was not
    written because jinja2 or junitparser is not installed; the summaries need neither. Raise
    FileNotFoundError if `out_dir` is missing.
    """

    def junit() -> bytes:
        from attnproof.harness.report.formats.junit import junit_bytes

        return junit_bytes(run)

    def html() -> bytes:
        from attnproof.harness.report.page.html import render_html

        return render_html(run, oracles or {}).encode("utf-8")

    write_summary(run, out_dir / "summary.json")
    replace_file(out_dir / "summary.md", run_markdown(run).encode("utf-8"))
    missing = [_write(out_dir / "junit.xml", junit), _write(out_dir / "index.html", html)]
    return [reason for reason in missing if reason]


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
