"""Hypothesis draws the same cases wherever attnproof is installed."""

from __future__ import annotations

from hypothesis.internal.conjecture.providers import HypothesisProvider

from attnproof.harness.running.task.fuzz import without_local_constants


def test_no_constants_of_the_source_are_drawn():
    own = vars(HypothesisProvider)["_local_constants"]
    with without_local_constants():
        assert not HypothesisProvider(None)._local_constants.set_for_type("integer")
    assert vars(HypothesisProvider)["_local_constants"] is own
