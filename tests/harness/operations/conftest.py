"""Checks that the tests of several sequences share."""

from __future__ import annotations

import pytest


@pytest.fixture
def assert_applied():
    """Check of a named boundary: every step applies, of pairs of steps more than half."""

    def check(name, case, script):
        applied = len(script(case, 0).lines)
        # Some pairs of steps have no second one, and all begin with the removal of all requests.
        pairs = name.endswith("then each kind of step")
        assert applied > case.num_steps // 2 if pairs else applied == case.num_steps

    return check
