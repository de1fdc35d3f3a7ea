"""Candidates that attack the harness from inside their own process."""

from __future__ import annotations

import json
import signal
import time

import pytest

from tests.attacks.attack import FAIL
from tests.attacks.promises import channel, duration, judge, outputs, process
from tests.attacks.runs import OPERATION, verify

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
"""Attacks by promise; the first line of a module says which one."""
CHEAPEST = "is_block_tables_empty"
"""Operation with eight cases: enough where the process is attacked and not the judge."""
OF_TENSORS = {"judge", "tensors", "values", "errors", "duration"}
TIMEOUT_S, STARTED_S = 2.0, 3.0
FEW = ("--examples", "9")
"""As many cases as Hypothesis draws for one seed."""
OPTIONS = {"memory": (*FEW, "--memory", "1"), "duration": ("--jobs", "9")}
"""Options by group; the sixtieth call must exist where time is attacked."""


@pytest.mark.parametrize("group", GROUPS)
def test_every_candidate_gets_its_verdict(group, tmp_path):
    operation = OPERATION if group in OF_TENSORS else CHEAPEST
    attacks = GROUPS[group]
    for attack in attacks:
        (tmp_path / f"{attack.name}.py").write_text(attack.source(operation), encoding="utf-8")
    chosen = [word for attack in attacks for word in ("--candidate", f"{attack.name}.py")]
    ended = verify(tmp_path, *chosen, *OPTIONS.get(group, FEW), operations=operation).end()
    ended.assert_orderly(1)
    ended.assert_report()
    assert not [found for attack in attacks for found in problems(attack, ended)]


def problems(attack, ended):
    """Yield what is wrong with the ending of an attack."""
    found = ended.candidate(attack.name)
    texts = f"{attack.name} is {found.verdict}: {found.text[:500]!r}"
    if found.verdict != attack.verdict or bool(found.findings) != (attack.verdict == FAIL):
        yield f"{texts}, expected {attack.verdict}"
    if not any(words in found.text for words in attack.words.split("|")):
        yield f"{texts}, expected {attack.words}"
    if "the harness failed" in found.text:
        yield texts


def test_a_hang_is_a_complete_finding_within_three_limits(tmp_path):
    attack = duration.FIRST_CALL
    (tmp_path / "first_call.py").write_text(attack.source(OPERATION), encoding="utf-8")
    run = verify(tmp_path, "--candidate", "first_call.py")
    time.sleep(3 * TIMEOUT_S + STARTED_S)
    run.signal(signal.SIGINT)
    ended = run.end()
    ended.assert_orderly(1)
    ended.assert_report()
    assert not [*problems(attack, ended)]
    [case] = (tmp_path / "o" / "cases").glob("*.json")
    assert json.loads(case.read_text(encoding="utf-8"))["candidate"] == "first_call"


def test_an_import_that_hangs_ends_with_the_run(tmp_path):
    (tmp_path / "importing.py").write_text("while True: pass", encoding="utf-8")
    run = verify(tmp_path, "--candidate", "importing.py")
    time.sleep(STARTED_S)
    run.signal(signal.SIGINT)
    run.end(2 * STARTED_S).assert_orderly(3)
