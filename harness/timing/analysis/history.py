"""The history of timings: the baselines of this machine in a folder."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from attnproof.harness.model.run import Environment
from attnproof.harness.model.timing import Bench, Past
from attnproof.harness.timing.analysis.baseline import (
    Baseline,
    BaselineError,
    entry_of,
    load,
    machine_of,
)


def read(folder: Path, bench: Bench, environment: Environment) -> list[Past]:
    """Return the timings that the folder's baselines share with the run, the oldest first.

    Leaves out baselines of another machine, damaged ones and those without a common timing;
    `--baseline` reports an error for these.
    """
    keys = {entry_of(timing).key for timing in bench.timings}
    machine = machine_of(environment)
    history = []
    for path in sorted(folder.glob("*.json")):
        try:
            baseline = load(path)
        except BaselineError:
            continue
        if baseline.machine == machine and (past := _past(baseline, keys)).medians_ns:
            history.append(past)
    return sorted(history, key=lambda past: (past.created, past.name))


def _past(baseline: Baseline, keys: set[tuple[str, str, str, str, str]]) -> Past:
    return Past(
        name=baseline.name,
        created=baseline.created,
        commit=baseline.commit or "unknown",
        control_ns=median(baseline.control_ns),
        medians_ns={
            entry.label: median(entry.host_ns) for entry in baseline.entries if entry.key in keys
        },
    )
