"""A campaign whose pool answers at once."""

from __future__ import annotations

import pytest

from attnproof.harness.campaign.driver import Aim, Driver
from attnproof.harness.campaign.ledger import CampaignLedger
from attnproof.harness.operations import ALL
from attnproof.harness.running.task.settings import Settings
from tests.harness.campaign.instant_pool import BEGUN, CANDIDATE, PAIRS, InstantPool


@pytest.fixture
def pool(tmp_path) -> InstantPool:
    return InstantPool(tmp_path / "examples")


@pytest.fixture
def drive(tmp_path, pool):
    """Start a driver in the folder; `drive(tasks)` works until so many tasks have ended."""

    def start(tasks: int, *, work: bool = True) -> Driver:
        pairs = {pair: (ALL[pair.operation], CANDIDATE) for pair in PAIRS}
        aim = Aim(pairs, Settings(seed=1, examples=10), 3600.0, tasks)
        ledger = CampaignLedger(tmp_path, BEGUN)
        driver = Driver(
            aim,
            ledger,
            pool.examples,
            pool,
            lambda _driver, _line, _new: None,
            lambda _driver: None,
        )
        try:
            if work:
                driver.work()
        except SystemExit:  # killed: what it would write at its end is not written
            pool.waiting.clear()
            pool.most_orders = float("inf")
        ledger.close()
        return driver

    return start
