"""A finding's case in one line, to be replayed from a comment without the report's files."""

from __future__ import annotations

import shlex

from attnproof.harness.model.inline_case import inline_case
from attnproof.harness.model.run import Finding

LONGEST = 6_000
"""Characters of the longest case that is written inline."""


def inline_replay(finding: Finding) -> str:
    """Return a command line that has the case in it, "" if the case is too long.

    It is the finding's own command with standard input in place of the file.
    """
    case = inline_case(finding.case)
    _, found, options = finding.command.partition(finding.case_path)
    if len(case) > LONGEST or not found:
        return ""
    # The path may have been quoted.
    return f"printf %s {shlex.quote(case)} | attnproof replay -{options.removeprefix(chr(39))}"
