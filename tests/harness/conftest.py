"""Run the harness on the small wrong candidates of tests/harness/candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import pytest

from attnproof.harness.cases.steps.sampler import batches_from_sampler
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Batch
from attnproof.harness.operations import ALL
from attnproof.harness.running.candidates import BUILT_IN
from attnproof.harness.running.task.settings import Settings
from attnproof.harness.running.task.task import Outcome, examine
from attnproof.harness.running.worker.worker import warm_up

CANDIDATES = Path(__file__).parent / "candidates"
Examine = Callable[..., Outcome]


@pytest.fixture(scope="session", autouse=True)
def cached_samples() -> Iterator[None]:
    """Schedule the sampled requests of a seed once: it takes a second."""
    with pytest.MonkeyPatch.context() as patch:
        cached = lru_cache(batches_from_sampler)
        patch.setattr("attnproof.harness.verbs.selection.batches_from_sampler", cached)
        yield


@pytest.fixture(scope="session")
def sampled_batches() -> list[Batch]:
    """A few engine steps of sampled requests."""
    return [item.batch for item in batches_from_sampler(12, 5).batches]


@pytest.fixture(scope="session")
def examine_candidate(tmp_path_factory: pytest.TempPathFactory) -> Examine:
    """Examine one operation of a candidate file or module with nothing remembered."""
    warm_up(BUILT_IN)

    def run(name: str, operation: str, ledger: Path | None = None, **settings: object) -> Outcome:
        path = CANDIDATES / f"{name}.py"
        target = str(path) if path.exists() else name
        usual = {"examples_db": "", "examples": 20, "timeout_s": 5.0, "vary": False, "sparse": True}
        chosen = Settings(**usual | settings)
        ledger = ledger or tmp_path_factory.mktemp("examined") / "ledger.jsonl"
        return examine(
            ALL[operation], Candidate(name, target, interface="vllm-0.11"), chosen, [], [], ledger
        )

    return run
