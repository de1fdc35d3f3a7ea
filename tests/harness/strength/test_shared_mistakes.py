"""The same mistake in reference and optimized: equality sees nothing, the consumer does.

Each mistake is planted in both packages, and the harness then verifies one against the
other as it always does. Which oracles object is part of what is tested: of a mistake that
only the consumer sees nothing else would have told.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from attnproof import optimized, reference
from attnproof.harness.operations import ALL
from attnproof.harness.oracles import judge
from attnproof.harness.oracles.trial import Trial
from attnproof.harness.running.candidates import offered_by
from attnproof.harness.strength.shared_mistakes import CONSUMER, MISTAKES, ON_ONE_CASE

_REPOSITORY = Path(__file__).parents[3]


@pytest.mark.parametrize("mistake", MISTAKES, ids=[mistake.name for mistake in MISTAKES])
def test_a_shared_mistake_is_seen_by_the_consumer(examine_candidate, monkeypatch, mistake):
    for package in (reference, optimized):
        monkeypatch.setattr(package, mistake.part, mistake.plant(getattr(package, mistake.part)))
    outcome = examine_candidate("optimized", mistake.operation, examples=100)
    oracles = outcome.result.oracles
    assert sorted(name for name, count in oracles.items() if count.failed) == [*mistake.seen_by]
    if mistake.seen_by == (CONSUMER,):
        assert {finding.oracle for finding in outcome.findings} == {CONSUMER}
        for finding in outcome.findings:
            assert finding.diagnosis.startswith(mistake.says), finding.message


@pytest.mark.parametrize("mistake", ON_ONE_CASE, ids=[mistake.name for mistake in ON_ONE_CASE])
def test_a_shared_mistake_on_one_case_is_seen_by_the_consumer(monkeypatch, mistake):
    for package in (reference, optimized):
        monkeypatch.setattr(package, mistake.part, mistake.plant(getattr(package, mistake.part)))
    operation = ALL[mistake.operation]
    offers = [offered_by(package, operation) for package in (optimized, reference)]
    case = dict(operation.inputs.boundaries())[mistake.boundary]
    failures = judge(Trial(operation, case, *offers, "cpu")).failures
    assert {failure.oracle for failure in failures} == {*mistake.seen_by}
    assert failures[0].diagnosis == mistake.says


def test_edited_copies_of_both_packages_agree_and_are_wrong(tmp_path):
    for package in ("reference", "optimized"):
        shutil.copytree(_REPOSITORY / package, tmp_path / package)
        file = tmp_path / package / "ubatch.py"
        right = "md.block_table_tensor[r0:r1]"
        assert right in file.read_text()
        wrong = "md.block_table_tensor[: r1 - r0]"
        file.write_text(file.read_text().replace(right, wrong))
    options = ["--candidate", "optimized", "--examples", "40", "--steps", "5", "--out", "report"]
    command = [sys.executable, "-m", "attnproof", "verify", "--ops", "split_attn_metadata"]
    path = os.pathsep.join([str(tmp_path), str(_REPOSITORY)])
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(
        [*command, *options],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    summary = json.loads((tmp_path / "report" / "summary.json").read_text())
    (finding,) = summary["findings"]
    assert finding["oracle"] == CONSUMER
    assert finding["diagnosis"].startswith("sees "), finding["message"]
    assert finding["requests"] <= 2
