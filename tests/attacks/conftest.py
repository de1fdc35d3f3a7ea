"""Mark every attack, and adopt the orphans of the runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnproof.harness.running.processes.linux import adopt_orphans

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("attacks")


@pytest.fixture(scope="session", autouse=True)
def warm_parent():
    """Import what a run needs, so that a forked one begins at once."""
    import attnproof.harness.verbs.replay
    import attnproof.harness.verbs.verify  # noqa: F401
    from attnproof.harness.running.candidates import BUILT_IN
    from attnproof.harness.running.worker.worker import warm_up

    warm_up(BUILT_IN)


@pytest.fixture(scope="module", autouse=True)
def adopted_orphans():
    """Adopt the orphans of the runs, but not those of tests in other folders."""
    adopt_orphans()
    yield
    adopt_orphans(adopt=False)
