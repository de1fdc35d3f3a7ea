"""Run the harness on the small wrong candidates of tests/harness/candidates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from attnproof.harness.model.candidate import Candidate
from attnproof.harness.operations import ALL
from attnproof.harness.running.task.task import Outcome, Settings, examine
from attnproof.harness.running.worker.worker import warm_up

CANDIDATES = Path(__file__).parent / "candidates"
Examine = Callable[..., Outcome]


@pytest.fixture
def examine_candidate(tmp_path: Path) -> Examine:
    """Examine one operation of a candidate file or module with nothing remembered."""
    warm_up()

    def run(name: str, operation: str, **settings: object) -> Outcome:
        path = CANDIDATES / f"{name}.py"
        target = str(path) if path.exists() else name
        chosen = Settings(examples_db="", **{"examples": 60, "timeout_s": 5.0} | settings)
        ledger = tmp_path / "ledger.jsonl"
        return examine(ALL[operation], Candidate(name, target), chosen, [], [], ledger)

    return run
