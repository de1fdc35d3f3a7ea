"""The number of cases of a run depends on how many operations it verifies."""

from __future__ import annotations

import pytest

from attnproof.harness.operations import ALL
from attnproof.harness.running.candidates import BUILT_IN
from attnproof.harness.running.errors import UsageError
from attnproof.harness.verbs.checks import check_run
from attnproof.harness.verbs.depth import depth_of
from attnproof.harness.verbs.options import VerifyOptions

LANES = {candidate.name: candidate for candidate in BUILT_IN}


@pytest.mark.parametrize(
    ("operations", "candidates", "examples"),
    [
        (1, ["optimized"], 207),
        (len(ALL), ["optimized"], 72),
        (len(ALL), ["optimized", "optimized-triton"], 36),
    ],
)
def test_few_cases_each_where_many_operations_are_verified(operations, candidates, examples):
    chosen = list(ALL.values())[:operations]
    depth = depth_of(VerifyOptions(), chosen, [LANES[name] for name in candidates], {}, None)
    assert (depth.examples, depth.steps) == (examples, examples // 4)
    assert depth.is_usual


@pytest.mark.parametrize(
    ("name", "examples", "steps", "is_usual"),
    [("quick", 18, 8, False), ("default", 207, 51, True), ("thorough", 207, 200, True)],
)
def test_a_depth_determines_the_cases(name, examples, steps, is_usual):
    depth = depth_of(VerifyOptions(depth=name), list(ALL.values())[:1], [], {}, None)
    assert (depth.examples, depth.steps, depth.is_usual) == (examples, steps, is_usual)


@pytest.mark.parametrize(
    ("options", "sparse"),
    [({}, True), ({"examples": 40}, False), ({"depth": "thorough"}, False)],
)
def test_a_run_of_many_operations_is_sparse_unless_its_cases_are_given(options, sparse):
    depth = depth_of(VerifyOptions(**options), list(ALL.values()), BUILT_IN, {}, None)
    assert depth.sparse is sparse


def test_an_unknown_depth_is_a_usage_error():
    with pytest.raises(UsageError, match="--depth is deep: expected quick, default or thorough"):
        check_run(VerifyOptions(depth="deep"))
