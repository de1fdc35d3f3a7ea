"""The number of cases of a run depends on how many operations it verifies."""

from __future__ import annotations

import pytest

from attnproof.harness.operations import ALL
from attnproof.harness.running.candidates import BUILT_IN
from attnproof.harness.verbs.depth import depth_of
from attnproof.harness.verbs.options import VerifyOptions

LANES = {candidate.name: candidate for candidate in BUILT_IN}


@pytest.mark.parametrize(
    ("operations", "candidates", "examples"),
    [
        (1, ["optimized"], 207),
        (len(ALL), ["optimized"], 81),
        (len(ALL), ["optimized", "optimized-triton"], 36),
    ],
)
def test_few_cases_each_where_many_operations_are_verified(operations, candidates, examples):
    chosen = list(ALL.values())[:operations]
    depth = depth_of(VerifyOptions(), chosen, [LANES[name] for name in candidates], {}, None)
    assert (depth.examples, depth.steps) == (examples, examples // 4)
    assert depth.is_usual
