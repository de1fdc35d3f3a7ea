"""The text on a finding, from which every format takes its parts."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import NamedTuple

from attnproof.harness.model.comparison import Comparison
from attnproof.harness.model.inline_case import inline_case
from attnproof.harness.model.run import Finding
from attnproof.harness.report.shared.comparison import is_new
from attnproof.harness.report.shared.wording import many, shorten

LONGEST_CASE = 6_000
"""Characters of the longest case that is written inline."""
LONGEST_TEXT = 1_000
"""Characters of a diagnosis, a message or a value in the files for CI systems."""
_ORIGINS = {
    "fuzz": ("drawn case", "drawn cases"),
    "boundary": ("edge case", "edge cases"),
    "trace": ("step of the traces", "steps of the traces"),
    "recorded": ("recorded batch", "recorded batches"),
    "corpus": ("case of the corpus", "cases of the corpus"),
}


class FindingText(NamedTuple):
    """The parts of the text, each made when a format asks for it."""

    finding: Finding
    base: Comparison | None = None
    """Comparison with a base run, None without one."""

    def if_new(self, words: str) -> str:
        """Return `words` if the base run has no such finding, else ""."""
        return words if is_new(self.finding, self.base) else ""

    def subject(self) -> str:
        """Return operation and candidate."""
        return f"{self.finding.operation} of {self.finding.candidate}"

    def message(self) -> str:
        """Return the sentence on the mistake, its place, expected and got."""
        return shorten(self.finding.message, LONGEST_TEXT)

    def mistake(self) -> str:
        """Return the diagnosis, and the message unless the diagnosis repeats it."""
        message = f": {self.message()}" if self.finding.has_known_mistake else ""
        return f"{shorten(self.finding.diagnosis, LONGEST_TEXT)}{message}"

    def evidence(self) -> str:
        """Return the counts in words, such as "12 of 200 drawn cases, none of 50 edge cases"."""
        parts = [
            f"{counts.shown or 'none'} of {many(counts.cases, *_ORIGINS.get(origin, (origin,)))}"
            for origin, counts in self.finding.evidence.items()
        ]
        counted = ", ".join(parts) or many(self.finding.failed_cases, "case")
        return f"{counted} (found while shrinking)" if self._is_of_shrinking() else counted

    def _is_of_shrinking(self) -> bool:
        """True if only a case that was tried to make another one smaller shows the finding."""
        counted, fresh = self.finding.evidence.values(), not self.finding.case.before
        return bool(counted) and fresh and not any(counts.shown for counts in counted)

    def inline_replay(self) -> str:
        """Return a command line that has the case in it, "" if the case is too long.

        It is the finding's own command with standard input in place of the file, to be run from a
        comment without the files of the report.
        """
        case = inline_case(self.finding.case)
        _, path, options = self.finding.command.partition(self.finding.case_path)
        if len(case) > LONGEST_CASE or not path:
            return ""
        # The path may have been quoted.
        return f"printf %s {shlex.quote(case)} | attnproof replay -{options.removeprefix(chr(39))}"

    def replay(self) -> str:
        """Return the command line with the case in it, else the one with the case's file."""
        return self.inline_replay() or self.finding.command


def advice_counts(advice: list[Finding]) -> str:
    """Return the number of findings of each class, such as "3 contract, 1 type"."""
    counts = Counter(finding.kind for finding in advice)
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
