"""Every mutation of the catalogue is found, named and shrunk, on one side and on both.

Equality finds nothing that is planted in the reference too. The catalogue therefore names all
oracles that object then: for most mutations the consumer, for some the invariants.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from attnproof.harness.running.candidates import BUILT_IN
from attnproof.harness.running.worker.worker import warm_up
from attnproof.harness.strength.catalogue import all_mutations
from attnproof.harness.strength.running import run

pytestmark = pytest.mark.strength
REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="module", autouse=True)
def _prepared_process():
    """Load and compile once what every worker needs; workers are forks of this process."""
    warm_up(BUILT_IN)
    gc.freeze()  # no collection visits what numba's import made


@pytest.mark.parametrize("mutation", all_mutations(), ids=lambda mutation: mutation.id)
def test_a_mutation_is_found_named_and_shrunk(tmp_path, mutation):
    assert run(mutation, tmp_path / "ledger.jsonl").differences() == []


def test_edited_copies_of_both_packages_agree_and_are_wrong(tmp_path):
    package = tmp_path / "attnproof"
    shutil.copytree(REPOSITORY / "attnproof", package, symlinks=True)
    (package / "harness").unlink()
    (package / "harness").symlink_to(REPOSITORY / "harness")
    for name in ("reference", "optimized"):
        (package / name).unlink()
        shutil.copytree(REPOSITORY / name, package / name)
        file = package / name / "ubatch.py"
        right = "md.block_table_tensor[r0:r1]"
        assert right in file.read_text()
        wrong = "md.block_table_tensor[: r1 - r0]"
        file.write_text(file.read_text().replace(right, wrong))
    options = ["--candidate", "optimized", "--examples", "40", "--steps", "5", "--out", "report"]
    command = [sys.executable, "-m", "attnproof", "verify", "--ops", "split_attn_metadata"]
    done = subprocess.run(
        [*command, *options],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    summary = json.loads((tmp_path / "report" / "summary.json").read_text())
    (finding,) = summary["findings"]
    assert finding["oracle"] == "consumer"
    assert finding["diagnosis"].startswith("sees "), finding["message"]
    assert finding["requests"] <= 2
