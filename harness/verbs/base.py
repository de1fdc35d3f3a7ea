"""The check of `--base`: only runs of the same version and settings are compared."""

from __future__ import annotations

from collections.abc import Iterable

from attnproof import __version__
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.comparison import ComparedRun
from attnproof.harness.model.operation import Operation
from attnproof.harness.running.errors import UsageError
from attnproof.harness.verbs.options import VerifyOptions


def check_base(
    base: ComparedRun,
    operations: Iterable[Operation],
    candidates: Iterable[Candidate],
    options: VerifyOptions,
    examples: int,
) -> None:
    """Raise UsageError if findings would look new because the base run is of another kind.

    It needs the same version, contract and interface, the same operations and candidates on the
    same devices, or more, at least as many drawn cases (`examples`), and its end.
    """
    problem = _problem(base, operations, candidates, options, examples)
    if problem:
        raise UsageError(f"--base {options.base}: {problem}; make a base run like this one")


def _problem(
    base: ComparedRun,
    operations: Iterable[Operation],
    candidates: Iterable[Candidate],
    options: VerifyOptions,
    examples: int,
) -> str:
    """Return the first difference, "" without one."""
    if base.environment.attnproof != __version__:
        return f"it is of attnproof {base.environment.attnproof}, this is {__version__}"
    if base.settings.get("interrupted"):
        return "it was interrupted"
    settings = {"contract": options.fail_on or options.contract, "interface": options.interface}
    for name, value in settings.items():
        was = base.settings.get(name) or ""
        if was != value:
            return f"its {name} is {was or 'the default'}, here {value or 'the default'}"
    drawn = base.settings.get("examples")
    if not isinstance(drawn, int) or drawn < examples:
        return f"it drew {drawn} cases for each operation, this run draws {examples}"
    devices = {result.pair: result.device for result in base.operations}
    names = [operation.name for operation in operations]
    interfaces = base.settings.get("interfaces") or {}
    for candidate in candidates:
        spoken = interfaces.get(candidate.name, candidate.interface)
        if spoken != candidate.interface:
            return f"{candidate.name} had the interface {spoken}, here {candidate.interface}"
        for name in names:
            device = devices.get((name, candidate.name))
            if device is None:
                return f"it did not judge {name} of {candidate.name}"
            lane = candidate.judging(name).lane
            if device != lane:
                return f"{candidate.name} ran on {device}, here on {lane}"
    return ""
