"""Items of the pytest plugin: one for each operation of each candidate."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from attnproof.api.pytest_plugin import UNOFFERED
from attnproof.api.verifying import VerificationRun, decode_run, encode_run, verify
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.run import Cause, OperationResult
from attnproof.harness.running.candidates import resolve
from attnproof.harness.running.errors import AttnproofError, UsageError
from attnproof.harness.running.own_operations import use_operations
from attnproof.harness.running.shipped import is_shipped_list
from attnproof.harness.verbs.configuration import ConfigError, configured
from attnproof.harness.verbs.options import VerifyOptions
from attnproof.harness.verbs.selection import pick_operations

_ROOT = "attnproof"
"""First part of the id of every item."""


@dataclass(frozen=True)
class Plan:
    """The candidates and options of a pytest run."""

    candidates: dict[str, str]
    """Candidates as typed, by their names."""
    operations: list[Operation]
    names_operations: bool
    """True if the user has named the operations."""
    values: dict[str, Any]
    """Other arguments of `verify`."""
    folder: Path
    """Folder of results, which the workers of xdist share."""


def planned(names: list[str], definitions: list[str], values: dict[str, str], folder: str) -> Plan:
    """Return the plan of options, "" for one that is not given (pytest.UsageError).

    `definitions` are files and modules of operations.

    Options that are not given are those of the nearest pyproject.toml.
    """
    try:
        held = configured(VerifyOptions, {"candidates": names})
    except ConfigError as error:
        raise pytest.UsageError(f"attnproof: {error}") from None
    device = values["device"] or held.device
    stub = values["stub"] or held.stub
    ops = values["ops"] or held.ops
    typed = list(dict.fromkeys(names))
    try:
        use_operations(held.definitions + definitions)
        resolved = [candidate.name for candidate in resolve(typed, device, stub)]
        operations = pick_operations(ops)  # those of metadata builders too, which `resolve` adds
    except UsageError as error:
        raise pytest.UsageError(f"attnproof: {error}") from None
    deviations = values["deviations"]
    if deviations and not (is_shipped_list(deviations) or Path(deviations).is_file()):
        raise pytest.UsageError(f"--attnproof-deviations {deviations}: there is no such file")
    contract = values["contract"] or held.contract
    if contract not in ("engine", "strict"):
        raise pytest.UsageError(f"--attnproof-contract is {contract!r}, expected engine or strict")
    arguments = {
        "contract": contract,
        "device": device,
        "deviations": [deviations] if deviations else list(held.deviations),
        "interface": held.interface,
        "stub": stub,
        "examples": _number("examples", values, 1, held.examples),
        "seed": _number("seed", values, 0, held.seed),
    }
    candidates = dict(zip(resolved, typed, strict=True))
    return Plan(candidates, operations, bool(ops), arguments, Path(folder))


def _number(name: str, values: dict[str, str], least: int, default: int | None) -> int | None:
    """Return the number of an option (pytest.UsageError)."""
    text = values[name]
    if not text:
        return default
    if not text.isdecimal() or int(text) < least:
        raise pytest.UsageError(f"--attnproof-{name} is {text!r}, expected a number from {least}")
    return int(text)


def items_of(plan: Plan, session: pytest.Session) -> Iterator[pytest.Item]:
    """Yield the items of all candidates."""
    root = _Group.from_parent(session, name=_ROOT, nodeid=_ROOT)
    for name in plan.candidates:
        group = _Group.from_parent(root, name=name, nodeid=f"{_ROOT}::{name}")
        group.plan = plan
        for operation in plan.operations:
            yield _OperationItem.from_parent(group, name=operation.name)


class _Group(pytest.Collector):
    """The items of one candidate, or the groups of all."""

    plan: Plan
    error: str = ""
    """Reason why the candidate could not be verified at all."""

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        """Return nothing: `items_of` makes the items."""
        return []

    @cached_property
    def run(self) -> VerificationRun:
        """The verification of this candidate's selected operations, in any worker of xdist.

        Raises AttnproofError.
        """
        number = list(self.plan.candidates).index(self.name)
        done = self.plan.folder / f"{number}.run"
        with (self.plan.folder / f"{number}.lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # a worker waits for the one that verifies
            if not done.exists():
                done.write_bytes(self._verified())
        return decode_run(done.read_bytes())

    def _verified(self) -> bytes:
        """Verify all selected operations together, as the start of a run takes seconds."""
        selected = [item.name for item in self.session.items if item.parent is self]
        target = self.plan.candidates[self.name]
        try:
            return encode_run(verify(target, ops=selected, **self.plan.values))
        except AttnproofError as error:
            return encode_run(error)


class _OperationItem(pytest.Item):
    """The verification of one operation of a candidate."""

    @property
    def _group(self) -> _Group:
        assert isinstance(self.parent, _Group)
        return self.parent

    def runtest(self) -> None:
        """Raise what pytest reports for the operation's verdict."""
        run = self._run()
        result = next(result for result in run.operations if result.name == self.name)
        reason = result.reason
        if result.cause == Cause.NAMED_IN_OPS and not self._group.plan.names_operations:
            self._skip_unoffered(reason.removeprefix("named in --ops, but "))
        self._conclude(run, result)

    def _run(self) -> VerificationRun:
        """Return the run; an error of the whole candidate fails one item and skips the others."""
        group = self._group
        if group.error:
            pytest.skip(f"the candidate was not verified: {group.error}")
        try:
            return group.run
        except AttnproofError as error:
            group.error = str(error)
            raise _NotVerifiedError(group.error) from None

    def _skip_unoffered(self, reason: str) -> None:
        self.user_properties.append(UNOFFERED)
        pytest.skip(reason)

    def _conclude(self, run: VerificationRun, result: OperationResult) -> None:
        known = [deviation for deviation in run.deviations if deviation.operation == self.name]
        titles = "; ".join(f"{deviation.id}: {deviation.title}" for deviation in known)
        if result.verdict == "NOT OFFERED":
            self._skip_unoffered(result.reason)
        if result.verdict == "UNVERIFIED":
            raise _NotVerifiedError(f"UNVERIFIED {self.name}: {result.reason}")
        if result.verdict == "FAIL":
            cards = [
                run.card(finding) for finding in run.findings if finding.operation == self.name
            ]
            raise _NotVerifiedError("\n\n".join(cards))
        if result.verdict == "DEVIATES":
            pytest.xfail(titles)
        if known:  # all of them stale
            raise _NotVerifiedError(f"[XPASS(strict)] no case showed the known deviation {titles}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the text of a verdict without a traceback."""
        if isinstance(excinfo.value, _NotVerifiedError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the place of the item: the folder of the run, and its name."""
        return self.path, None, f"{self._group.name}::{self.name}"


class _NotVerifiedError(Exception):
    """A verdict that fails an item; its text is all that pytest shows."""
