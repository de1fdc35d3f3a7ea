"""Baselines: files of timings, with raw samples and the machine that they were made on.

A missing file and a damaged one are different errors of one line each.
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Annotated, Final, Literal

import msgspec

from attnproof.harness.backports import UTC
from attnproof.harness.model.candidate import Lane
from attnproof.harness.model.files import read_regular
from attnproof.harness.model.run import Environment
from attnproof.harness.model.timing import BaselineState, Bench, Costs, Noise, Steps, Timing
from attnproof.harness.running.errors import InfrastructureError, UsageError
from attnproof.harness.timing.plan.timetable import STEP

FOLDER = Path("reports/baselines")
SCHEMA: Final = "attnproof.baseline/2"
"""Its number changes with the method of timing: times by two methods cannot be compared."""
MARK: Final = "attnproof.baseline/"
"""Text at the beginning of every baseline file."""
Nanoseconds = Annotated[float, msgspec.Meta(gt=0)]


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of a machine that times depend on; names as in `Environment`."""

    cpu: str
    cpus: int
    platform: str
    python: str
    torch: str
    numpy: str
    triton: str | None
    numba: str | None
    gpu: str | None


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One timing, as in `Timing`."""

    operation: str
    candidate: str
    lane: Lane
    workload: str
    case_id: str
    calls: int
    host_ns: Annotated[list[Nanoseconds], msgspec.Meta(min_length=1)]
    device_ns: list[Nanoseconds]
    costs: Costs

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """Identity of a timing: includes the input, not only its name."""
        return (self.operation, self.candidate, self.workload, self.lane, self.case_id)

    @property
    def label(self) -> str:
        """Name for messages."""
        return f"{self.operation} / {self.candidate} / {self.workload}"


class KeptStep(msgspec.Struct, frozen=True, kw_only=True):
    """One engine step, as in `Step`."""

    source: str
    case_id: str
    ns: Annotated[list[Nanoseconds], msgspec.Meta(min_length=1)]


class KeptSteps(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate through the steps of a trace, as in `Steps`."""

    trace: str
    candidate: str
    operations: tuple[str, ...]
    steps: list[KeptStep]

    @property
    def key(self) -> tuple[str, str, tuple[str, ...]]:
        """Identity of the steps: includes the operations of an engine step."""
        return (self.trace, self.candidate, self.operations)

    @property
    def operation(self) -> str:
        """Name used in place of an operation."""
        return STEP

    @property
    def workload(self) -> str:
        """The trace: all its engine steps are compared at once."""
        return self.trace

    @property
    def label(self) -> str:
        """Name for messages."""
        return f"{STEP} / {self.candidate} / {self.trace} ({', '.join(self.operations)})"

    @property
    def samples(self) -> dict[tuple[str, str], list[float]]:
        """Nanoseconds by name and input of each engine step."""
        return {(step.source, step.case_id): step.ns for step in self.steps}


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a baseline file."""

    schema: Literal["attnproof.baseline/2"]
    name: str
    created: str
    """ISO 8601, UTC."""
    commit: str | None
    machine: Machine
    noise: Noise
    control_ns: Annotated[list[Nanoseconds], msgspec.Meta(min_length=1)]
    entries: list[Entry]
    steps: list[KeptSteps]


class _Schema(msgspec.Struct):
    schema: str


class BaselineError(Exception):
    """A baseline cannot be read; the message is one line, `state` its kind."""

    def __init__(self, state: BaselineState, text: str) -> None:
        super().__init__(text)
        self.state = state


def path_of(name: str, folder: Path = FOLDER) -> Path:
    """Return the file of a baseline (UsageError for a name that is not a plain file name)."""
    if name.endswith(".json"):
        raise UsageError(f"baseline {name!r}: give its name, {Path(name).stem}, not its file")
    plain = name.replace("-", "").replace("_", "").replace(".", "")
    if not plain.isalnum() or not plain.isascii() or name.startswith((".", "-")):
        raise UsageError(
            f"baseline {name!r}: a name is letters, digits, '-', '_' and '.', such as main-2"
        )
    return folder / f"{name}.json"


def save(path: Path, bench: Bench, environment: Environment) -> None:
    """Write a run's timings; replace an older file atomically (InfrastructureError)."""
    baseline = Baseline(
        schema=SCHEMA,
        name=path.stem,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=environment.commit,
        machine=machine_of(environment),
        noise=bench.noise,
        control_ns=bench.control_ns,
        entries=[entry_of(timing) for timing in bench.timings],
        steps=[kept(steps) for steps in bench.steps if steps.steps],
    )
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_bytes(msgspec.json.encode(baseline) + b"\n")
        scratch.replace(path)
    except OSError as error:
        raise InfrastructureError(
            f"baseline {path} could not be written: {error.strerror}"
        ) from None
    finally:
        with suppress(OSError):  # absent unless writing it failed
            scratch.unlink()


def load(path: Path) -> Baseline:
    """Read a baseline (BaselineError if it is missing or damaged)."""
    try:
        return msgspec.json.decode(read_regular(path), type=Baseline)
    except FileNotFoundError:
        raise BaselineError(
            "missing", f"there is no baseline {path}; make one with --save-baseline {path.stem}"
        ) from None
    except OSError as error:
        raise BaselineError(
            "damaged", f"baseline {path} cannot be read: {error.strerror}"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BaselineError(
            "damaged",
            f"baseline {path} {_damage(path, error)}; make it again with --save-baseline",
        ) from None


def _damage(path: Path, error: Exception) -> str:
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        schema = msgspec.json.decode(read_regular(path), type=_Schema).schema
        if schema.startswith(MARK) and schema != SCHEMA:
            return f"has schema {schema!r}, expected {SCHEMA!r}"
    return f"is damaged ({str(error).splitlines()[0]})"


def machine_of(environment: Environment) -> Machine:
    """Return the part of an environment that times depend on."""
    return Machine(**{name: getattr(environment, name) for name in Machine.__struct_fields__})


def differences(old: Machine, new: Machine) -> list[str]:
    """Return the differences, such as "torch 2.12.0, here 2.13.0"."""
    pairs = [(name, getattr(old, name), getattr(new, name)) for name in Machine.__struct_fields__]
    return [f"{name} {was}, here {now}" for name, was, now in pairs if was != now]


def entry_of(timing: Timing) -> Entry:
    """Return the part of a timing that a baseline keeps."""
    return Entry(
        operation=timing.operation,
        candidate=timing.candidate,
        lane=timing.lane,
        workload=timing.workload.name,
        case_id=timing.case_id,
        calls=timing.calls,
        host_ns=timing.host_ns,
        device_ns=timing.device_ns,
        costs=timing.costs,
    )


def kept(steps: Steps) -> KeptSteps:
    """Return the part of a candidate's engine steps that a baseline keeps."""
    return KeptSteps(
        trace=steps.trace,
        candidate=steps.candidate,
        operations=steps.operations,
        steps=[
            KeptStep(source=step.source, case_id=step.case_id, ns=step.ns) for step in steps.steps
        ],
    )


def control_of(samples: list[float]) -> float:
    """Return the median of the control's samples in nanoseconds, 1 without samples."""
    return median(samples) if samples else 1.0
