"""The pytest plugin: an item for each operation of each candidate named on the command line.

pytest imports this module in every run where attnproof is installed, so it imports nothing else
until a candidate is named. docs/api.md describes the options.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from attnproof.api.pytest_items import Plan

_PLAN: pytest.StashKey[Plan] = pytest.StashKey()
_SHARED: pytest.StashKey[str] = pytest.StashKey()
_FOLDER = "attnproof_folder"
"""Key under which a worker of xdist finds the folder that all workers share."""
_VALUES = {
    "contract": "engine or strict",
    "ops": "operations, separated by commas (default: all)",
    "examples": "cases drawn for each operation",
    "device": "device that the candidates run on",
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
    parser.addini("attnproof_candidate", "candidates to verify, one a line", "linelist", [])
    for name, text in _VALUES.items():
        group.addoption(f"--attnproof-{name}", default=None, help=text)
        parser.addini(f"attnproof_{name}", text, "string", "")


def pytest_configure(config: pytest.Config) -> None:
    """Check the options of a run that names candidates (pytest.UsageError)."""
    names = config.getoption("attnproof_candidate") or config.getini("attnproof_candidate")
    given = [name for name in _VALUES if config.getoption(f"attnproof_{name}") is not None]
    if not names:
        if given:
            raise pytest.UsageError(
                f"--attnproof-{given[0]} needs a candidate: add --attnproof-candidate NAME"
            )
        return
    values = {
        name: config.getoption(f"attnproof_{name}") or config.getini(f"attnproof_{name}")
        for name in _VALUES
    }
    from attnproof.api.pytest_items import planned

    folder = getattr(config, "workerinput", {}).get(_FOLDER)
    if folder is None:
        folder = config.stash[_SHARED] = tempfile.mkdtemp(prefix="attnproof-pytest-")
    config.stash[_PLAN] = planned(names, values, folder)


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

        found = list(items_of(config.stash[_PLAN], session))
        report = pytest.CollectReport("attnproof", "passed", None, [*found])
        config.hook.pytest_collectreport(report=report)  # pytest counts the items of reports
        items += found


def pytest_make_parametrize_id(val: object) -> str | None:
    """Return a readable id for a parameter that is a case of `attnproof.cases`."""
    drawing = sys.modules.get("attnproof.api.drawing")  # without it nothing made a case
    if drawing is None or not isinstance(val, drawing.Case):
        return None
    name: str = drawing.case_name(val)
    return name
