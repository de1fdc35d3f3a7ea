"""The pytest plugin: an item for each operation of each candidate named on the command line.

pytest imports this module in every run where attnproof is installed, so it imports nothing else
until a candidate is named. docs/api.md describes the options.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from attnproof.api.pytest_items import Plan
    from attnproof.harness.model.candidate import Candidate

_PLAN: pytest.StashKey[Plan] = pytest.StashKey()
_SHARED: pytest.StashKey[str] = pytest.StashKey()
_FOLDER = "attnproof_folder"
"""Key under which a worker of xdist finds the folder that all workers share."""
UNOFFERED = ("attnproof", "not offered")
"""Property of an item that is skipped because its candidate does not offer the operation."""
_VALUES = {
    "contract": "engine or strict",
    "ops": "operations, separated by commas (default: all)",
    "examples": "cases drawn for each operation",
    "device": "device that the candidates run on",
    "stub": "vllm: candidates that import vLLM get a stub of it, where it is not installed",
    "deviations": "file of known deviations",
    "seed": "seed of the cases (default: a new one)",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, and ini values of the same names with underscores."""
    group = parser.getgroup("attnproof")
    group.addoption(
        "--attnproof-candidate",
        action="append",
        default=[],
        metavar="NAME",
        help="candidate to verify, as attnproof's --candidate; repeatable",
    )
    group.addoption(
        "--benchmark",
        action="store_true",
        dest="times_operations",
        help="time the operations, each verified first, in place of all tests",
    )
    group.addoption(
        "--benchmark-candidate",
        action="append",
        default=[],
        dest="timed_candidates",
        help="candidate to time; repeatable, the last one is the peer (default: those of "
        "--attnproof-candidate, else optimized, beside vllm, or the reference without vllm)",
    )
    group.addoption(
        "--attnproof-operations",
        action="append",
        default=[],
        metavar="FILE",
        help="file.py, module or definition.json of operations of your own, as attnproof's "
        "--operations; repeatable",
    )
    parser.addini("attnproof_operations", "files of own operations, one a line", "linelist", [])
    parser.addini("attnproof_candidate", "candidates to verify, one a line", "linelist", [])
    for name, text in _VALUES.items():
        group.addoption(f"--attnproof-{name}", default=None, help=text)
        parser.addini(f"attnproof_{name}", text, "string", "")


def pytest_configure(config: pytest.Config) -> None:
    """Check the options of a run that names candidates (pytest.UsageError)."""
    if config.getoption("times_operations"):
        _choose_benchmarks(config)
        return
    names = _candidates(config)
    typed = [name for name in _VALUES if config.getoption(f"attnproof_{name}") is not None]
    if not names:
        if typed:
            raise pytest.UsageError(
                f"--attnproof-{typed[0]} needs a candidate: add --attnproof-candidate NAME"
            )
        return
    values = {name: _value(config, name) for name in _VALUES}
    from attnproof.api.pytest_items import planned

    folder = getattr(config, "workerinput", {}).get(_FOLDER)
    if folder is None:
        folder = config.stash[_SHARED] = tempfile.mkdtemp(prefix="attnproof-pytest-")
    sources = config.getoption("attnproof_operations") or config.getini("attnproof_operations")
    config.stash[_PLAN] = planned(names, [*sources], values, folder)


def _candidates(config: pytest.Config) -> list[str]:
    return [*(config.getoption("attnproof_candidate") or config.getini("attnproof_candidate"))]


def _choose_benchmarks(config: pytest.Config) -> None:
    """Let pytest collect the benchmarks and nothing else (pytest.UsageError)."""
    if not config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError("--benchmark needs pytest-benchmark: pip install pytest-benchmark")
    from attnproof.harness.running.errors import UsageError

    # Checked here, as an error during collection is printed with a traceback.
    try:
        lanes = {candidate.lane for candidate in timed_candidates(config)}
    except UsageError as error:
        raise pytest.UsageError(f"--benchmark-candidate: {error}") from None
    if "interpreter" in lanes:
        raise pytest.UsageError(
            "--benchmark-candidate: the interpreter has no speed; name candidates of another lane"
        )
    config.args = [str(Path(__file__).with_name("benchmarks"))]


def timed_candidates(config: pytest.Config) -> list[Candidate]:
    """Return the candidates that `--benchmark` times, the peers last (UsageError)."""
    from attnproof.harness.running.candidates import resolve
    from attnproof.harness.verbs.bench import OWN, default_peers

    names = config.getoption("timed_candidates")
    names = names or [*(_candidates(config) or [OWN]), *default_peers()]
    return resolve(names, "auto", _value(config, "stub"))


def _value(config: pytest.Config, name: str) -> str:
    """Return an option, else the value of the ini file, "" without either."""
    value: str = config.getoption(f"attnproof_{name}") or config.getini(f"attnproof_{name}")
    return value


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of xdist the shared folder: each candidate is verified once in all."""
    if _SHARED in node.config.stash:
        node.workerinput[_FOLDER] = node.config.stash[_SHARED]


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the shared folder."""
    if _SHARED in config.stash:
        shutil.rmtree(config.stash[_SHARED], ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the items, before `-k` and `--lf` choose among all."""
    if _PLAN in config.stash:
        from attnproof.api.pytest_items import items_of

        collected = list(items_of(config.stash[_PLAN], session))
        report = pytest.CollectReport("attnproof", "passed", None, [*collected])
        config.hook.pytest_collectreport(report=report)  # pytest counts the items of reports
        items += collected


def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport,
) -> tuple[str, str, str] | None:
    """Count operations that a candidate does not offer apart from skipped tests."""
    if report.skipped and UNOFFERED in getattr(report, "user_properties", ()):  # of tests only
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        return "not offered", "", f"NOT OFFERED ({reason.removeprefix('Skipped: ')})"
    return None


def pytest_make_parametrize_id(val: object) -> str | None:
    """Return a readable id for a parameter that is a case of `attnproof.cases`."""
    drawing = sys.modules.get("attnproof.api.drawing")  # without it nothing made a case
    if drawing is None or not isinstance(val, drawing.Case):
        return None
    name: str = drawing.case_name(val)
    return name
