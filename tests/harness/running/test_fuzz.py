"""Hypothesis draws the same cases wherever attnproof is installed, and as many as are wanted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis.internal.conjecture.providers import HypothesisProvider

from attnproof.harness.operations import ALL
from attnproof.harness.running.task.fuzz import fuzz, without_local_constants


def test_no_constants_of_the_source_are_drawn():
    own = vars(HypothesisProvider)["_local_constants"]
    with without_local_constants():
        assert not HypothesisProvider(None)._local_constants.set_for_type("integer")
    assert vars(HypothesisProvider)["_local_constants"] is own


@pytest.mark.parametrize(
    ("operation", "examples", "cases"),
    [("compute_slot_mapping", 100, 100), ("kv_manager", 100, 50), ("kv_manager", 1, 1)],
)
def test_as_many_different_cases_are_drawn_as_are_wanted(operation, examples, cases):
    every_case_passes: Any = SimpleNamespace(
        operation=ALL[operation],
        is_sequence=ALL[operation].inputs.machine is not None,
        early_faults={},
        one_ahead=iter,
        check=lambda _sourced: (),
        roots=SimpleNamespace(new_failure=lambda _failures: None),
    )
    assert len({case.id for case in fuzz(every_case_passes, examples, 7)}) == cases
