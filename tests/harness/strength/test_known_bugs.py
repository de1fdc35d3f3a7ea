"""Bugs that shipped are found with default settings, named rightly and shrunk to their core."""

from __future__ import annotations

import pytest

from attnproof.harness.strength.known_bugs import all_bugs

BUGS = all_bugs()


@pytest.mark.parametrize("module", BUGS, ids=[bug.id for bug in BUGS.values()])
def test_known_bug_is_found(examine_candidate, module):
    bug = BUGS[module]
    outcome = examine_candidate(module, bug.operation, examples=200)
    assert outcome.findings, f"{bug.id} was not found in {outcome.result.cases} cases"
    for finding in outcome.findings:
        assert finding.diagnosis.startswith(bug.diagnoses), finding.message
        assert finding.requests <= bug.requests
        assert finding.tokens <= bug.tokens
        assert len(finding.steps) <= bug.steps
