"""What people and machines read of a run: index.html, summary.json, summary.md, junit.xml."""

from attnproof.harness.report.formats.summary import write_summary
from attnproof.harness.report.write import write_report

__all__ = ["write_report", "write_summary"]
