"""`pytest --benchmark` runs tests/benchmarks and nothing else; plain `pytest` runs the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent / "tests" / "benchmarks"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the benchmark options."""
    group = parser.getgroup("attnproof")
    group.addoption(
        "--benchmark",
        action="store_true",
        dest="times_operations",
        help="time the operations (tests/benchmarks) instead of testing",
    )
    group.addoption(
        "--benchmark-candidate",
        action="append",
        default=[],
        dest="timed_candidates",
        help="candidate to time, as attnproof's --candidate; repeatable, the last one is the peer "
        "(default: optimized and vllm, without vllm the reference)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Reject candidates that cannot be timed, before collection, where errors are tracebacks."""
    names = config.getoption("timed_candidates")
    if not config.getoption("times_operations") or not names:
        return
    from attnproof.harness.running.candidates import resolve
    from attnproof.harness.running.errors import UsageError

    try:
        lanes = {candidate.lane for candidate in resolve(names, "auto")}
    except UsageError as error:
        raise pytest.UsageError(f"--benchmark-candidate: {error}") from None
    if "interpreter" in lanes:
        raise pytest.UsageError(
            "--benchmark-candidate: the interpreter has no speed, name other candidates"
        )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore the tests if benchmarks are run, otherwise ignore the benchmarks."""
    timed = collection_path == BENCHMARKS or BENCHMARKS in collection_path.parents
    if not config.getoption("times_operations"):
        return True if timed else None
    return None if timed or collection_path in BENCHMARKS.parents else True
