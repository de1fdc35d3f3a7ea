"""The report of a run: index.html, summary.json, summary.md, junit.xml, terminal."""

from attnproof.harness.report.formats.summary import write_summary
from attnproof.harness.report.write import write_report

__all__ = ["write_report", "write_summary"]
