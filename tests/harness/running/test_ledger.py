"""A ledger that cannot be written is an error of the machine, as one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnproof.harness.model.case import Case, Sourced
from attnproof.harness.running.errors import InfrastructureError
from attnproof.harness.running.task.ledger import Ledger


def test_a_full_disk():
    ledger = Ledger(Path("/dev/full"), "operation", "candidate")
    with pytest.raises(InfrastructureError, match="cannot be written: No space left on device"):
        ledger.announce(Sourced(Case("operation"), "fuzz"))
    ledger.close()


def test_a_folder_that_is_gone(tmp_path):
    with pytest.raises(InfrastructureError, match="cannot be written: No such file or directory"):
        Ledger(tmp_path / "gone" / "ledger.jsonl", "operation", "candidate")
