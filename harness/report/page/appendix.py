"""The appendix: environment, settings and glossary of the report."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from attnproof.harness.escaping import escape_tree
from attnproof.harness.model.run import Run
from attnproof.harness.report.shared.wording import shorten


class Entry(NamedTuple):
    """A name and its text."""

    name: str
    text: str


GLOSSARY = (
    Entry(
        "operation",
        "One utility of the specification: its inputs, its reference function, its invariants, the "
        "outputs' elements that have a meaning, and the costs that it may have.",
    ),
    Entry(
        "candidate",
        "An implementation of operations: a module with functions or classes under the specified "
        "names. A missing name is not offered.",
    ),
    Entry(
        "case",
        "One concrete input of one operation. Its id is a hash of its content; it can be saved, "
        "shown as a picture and replayed.",
    ),
    Entry(
        "sequence",
        "A case of many steps on the same persistent objects. After each step their visible state "
        "is compared.",
    ),
    Entry("oracle", "A rule that judges a candidate on a case."),
    Entry("check", "One oracle judging one candidate on one case."),
    Entry(
        "finding",
        "One root cause: the shrunk case, the first wrong field, and a diagnosis in words.",
    ),
    Entry("run", "All verdicts of one invocation, with environment and seed."),
    Entry(
        "verified", "Every oracle that applies has checked the operation, and every check passed."
    ),
    Entry("failed", "At least one check failed, or the candidate crashed or hung."),
    Entry(
        "unverified", "Offered, but without a verdict. The run is then incomplete, never a pass."
    ),
    Entry("not offered", "The candidate has no function or class of that name."),
    Entry("workload", "A case that is timed, in the same form for every candidate."),
    Entry("peer", "The candidate that the others are timed against, in turn in one process."),
    Entry(
        "noise floor",
        "The smallest difference that this run can measure, taken from functions timed against "
        "themselves.",
    ),
    Entry(
        "control", "A fixed piece of work, timed throughout a run to measure the machine's speed."
    ),
    Entry(
        "baseline",
        "The timings of an earlier run on its machine. A slower timing is the verdict SLOWER; a "
        "comparison that is not possible leaves the run incomplete.",
    ),
    Entry("query token", "A token that is computed in this engine step."),
    Entry("computed token", "A token that is already in the cache; there are c = s - q of them."),
    Entry(
        "block", "block_size places of the KV cache; a block table lists the blocks of each row."
    ),
    Entry(
        "slot", "A token's place in the cache: block id times block size plus offset; -1 for none."
    ),
    Entry(
        "stale",
        "Left over from earlier batches: columns after a row's blocks, entries after the "
        "tokens. No result may depend on it.",
    ),
    Entry(
        "padding",
        "Rows and tokens that fill a batch up to a captured graph's size: no query, slot -1.",
    ),
)

_ENVIRONMENT = {
    "commit": "Commit",
    "platform": "Platform",
    "cpu": "CPU",
    "cpus": "CPU threads",
    "gpu": "GPU",
    "python": "Python",
    "torch": "torch",
    "numpy": "numpy",
    "triton": "triton",
    "numba": "numba",
    "xformers": "xformers",
    "attnproof": "attnproof",
}


def environment_rows(run: Run) -> tuple[Entry, ...]:
    """Return the start time, the machine and the versions of the run."""
    environment = run.environment
    known = [
        Entry(label, _or_none(getattr(environment, name))) for name, label in _ENVIRONMENT.items()
    ]
    rest = [name for name in environment.__struct_fields__ if name not in _ENVIRONMENT]
    return (
        Entry("Started", run.started),
        *known,
        *(Entry(name, _or_none(getattr(environment, name))) for name in rest),
    )


def settings_rows(run: Run) -> tuple[Entry, ...]:
    """Return the seed and the resolved settings of the run."""
    plain = escape_tree(msgspec.to_builtins(run.settings, enc_hook=str))
    rows = [Entry(name, shorten(_value(value), 500)) for name, value in plain.items()]
    return (Entry("seed", str(run.seed)), *(row for row in rows if row.name != "seed"))


def _or_none(value: object) -> str:
    return "none" if value is None else str(value)


def _value(value: object) -> str:
    """Return a string as it is, any other setting as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
