"""Checks of the options before a run starts; every error names the option and the valid values."""

from __future__ import annotations

import os
from pathlib import Path

from attnproof.harness.model.text import near_hint
from attnproof.harness.running.devices import check_device
from attnproof.harness.running.engine_stub import check_stub
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.interface_choice import with_interface
from attnproof.harness.verbs.ci import check_ci
from attnproof.harness.verbs.depth import DEPTHS
from attnproof.harness.verbs.options import CallOptions, TimingOptions, VerifyOptions
from attnproof.harness.verbs.selection import with_contract

_MOST = 1_000_000
_MOST_SEED = 2**63 - 1
"""Maximum seed: what the files of a run hold."""
_LEAST_MEMORY_GIB = 0.1
"""Least limit with which the interpreter and the arguments of every case have memory."""
_MOST_TIMED_STEPS = 10_000
_MOST_TIMING_SECONDS = 36_000


def check_call(options: CallOptions) -> None:
    """Raise UsageError for a timeout out of range or an unknown device."""
    if not 0 < options.timeout_s <= _MOST:
        raise UsageError(
            f"--timeout is {options.timeout_s:g}, expected more than 0 and at most {_MOST:,}"
        )
    check_device(options.device)


def check_run(options: VerifyOptions) -> None:
    """Raise UsageError for a value out of range, an unknown device, or a trace without steps."""
    check_call(options)
    check_out(options.out)
    check_depth(options.depth)
    for name in ("examples", "steps", "jobs", "maxfail", "seconds", "memory_gib"):
        value = getattr(options, name) or 0
        # Not `value < 0 or …`: a NaN must fail too.
        if not 0 <= value <= _MOST:
            flag = name.removesuffix("_gib")
            raise UsageError(f"--{flag} is {value}, expected a number from 0 to {_MOST:,}")
    if options.memory_gib < _LEAST_MEMORY_GIB:
        raise UsageError(
            f"--memory is {options.memory_gib:g}, expected at least {_LEAST_MEMORY_GIB} (GiB)"
        )
    _check_source(options.seed or 0, options)
    if options.examples == 0:
        raise UsageError("--examples is 0, expected at least 1")


def check_values(options: VerifyOptions) -> None:
    """Raise UsageError for a value that `verify` refuses, whatever the files and candidates."""
    check_run(options)
    check_ci(options.ci)
    if options.stub:
        check_stub(options.stub)
    with_interface([], options.interface)
    with_contract([], options)


def check_out(folder: Path) -> None:
    """Raise UsageError if the folder cannot be made, because a part of its path is a file."""
    # Not `exists`: it raises for a name that is too long.
    existing = next((p for p in (folder, *folder.parents) if os.path.lexists(p)), Path())
    if not os.path.isdir(existing):  # noqa: PTH112
        raise UsageError(f"--out {folder} cannot be written: {existing} is a file; name a folder")


def check_depth(name: str) -> None:
    """Raise UsageError for a depth that does not exist."""
    if name not in DEPTHS:
        known = f"{', '.join(DEPTHS[:-1])} or {DEPTHS[-1]}"
        raise UsageError(f"--depth is {name}: {near_hint(name, DEPTHS)}expected {known}")


def check_timing(options: TimingOptions) -> None:
    """Raise UsageError for a value out of range, or a trace without steps."""
    if not 0 < options.seconds <= _MOST_TIMING_SECONDS:
        raise UsageError(
            f"--seconds is {options.seconds:g}, expected more than 0 and at most "
            f"{_MOST_TIMING_SECONDS:,}"
        )
    if not 0 <= options.steps <= _MOST_TIMED_STEPS:
        raise UsageError(
            f"--steps is {options.steps}, expected a number from 0 to {_MOST_TIMED_STEPS:,}"
        )
    _check_source(options.seed, options)
    if options.recorded and options.steps == 0:
        raise UsageError("--recorded with --steps 0 times no recorded batch: drop one of them")


def check_seed(seed: int) -> None:
    """Raise UsageError for a seed that is negative, or too large for the files of a run."""
    if seed < 0:
        raise UsageError(f"--seed is {seed}, expected a number of at least 0")
    if seed > _MOST_SEED:
        raise UsageError(f"--seed is {seed}, expected a number of at most 2**63 - 1")


def _check_source(seed: int, options: VerifyOptions | TimingOptions) -> None:
    check_seed(seed)
    if options.traces and options.steps == 0:
        raise UsageError("--trace with --steps 0 takes no step of the trace: drop one of them")
