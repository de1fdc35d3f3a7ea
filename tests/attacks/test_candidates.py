"""Candidates that attack the harness from inside their own process."""

from __future__ import annotations

import pytest

from tests.attacks.promises import channel, duration, judge, outputs, process
from tests.attacks.runs import verify

GROUPS = {
    "channel": channel.ATTACKS,
    "endings": process.ENDINGS,
    "left": process.LEFT,
    "state": process.STATE,
    "memory": process.MEMORY,
    "judge": judge.ATTACKS,
    "tensors": outputs.TENSORS,
    "values": outputs.VALUES,
    "errors": outputs.ERRORS,
    "duration": duration.ATTACKS,
}
ALL = [
    pytest.param(group, attack, id=f"{group}-{attack.name}", marks=pytest.mark.xdist_group(group))
    for group, attacks in GROUPS.items()
    for attack in attacks
]
"""Promises of each group are in the first line of its module."""
OPTIONS = {"memory": ("--memory", "1")}
HANGS_S = 90.0


@pytest.fixture(scope="session")
def judged(tmp_path_factory):
    """Run all candidates of a group in one command line, once."""
    ended = {}

    def run(group):
        if group not in ended:
            folder = tmp_path_factory.mktemp(group)
            names = [f"{attack.name}.py" for attack in GROUPS[group]]
            for attack in GROUPS[group]:
                (folder / f"{attack.name}.py").write_text(attack.source(), encoding="utf-8")
            chosen = [word for name in names for word in ("--candidate", name)]
            started = verify(folder, *chosen, *OPTIONS.get(group, ()))
            ended[group] = started.end(HANGS_S)
        return ended[group]

    return run


@pytest.mark.parametrize(("group", "attack"), ALL)
def test_each_candidate_gets_its_verdict(group, attack, judged):
    found = judged(group).candidate(attack.name)
    assert "the harness failed" not in found.text, found.text
    assert found.verdict == attack.verdict, found.text
    assert any(words in found.text for words in attack.words.split("|")), found.text
    assert bool(found.findings) == (attack.verdict == "FAIL")


@pytest.mark.parametrize(
    "group", [pytest.param(group, marks=pytest.mark.xdist_group(group)) for group in GROUPS]
)
def test_a_run_of_hostile_candidates_ends_in_order(group, judged):
    ended = judged(group)
    ended.assert_orderly(1)
    ended.assert_report()
