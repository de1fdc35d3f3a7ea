"""The appendix: environment, settings and the words of the report."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from attnproof.harness.model.run import Run
from attnproof.harness.report.shared.wording import clean_tree, shorten


class Entry(NamedTuple):
    """A name and what there is to say about it."""

    name: str
    text: str


GLOSSARY = (
    Entry(
        "operation",
        "One utility of the specification: its inputs, its reference function, what must hold, "
        "which elements of its outputs have a meaning, and what it may cost.",
    ),
    Entry(
        "candidate",
        "Something that claims to implement operations: a module that offers functions or classes "
        "under the specified names. What it lacks is not offered.",
    ),
    Entry(
        "case",
        "One concrete input of one operation. Its id is a hash of its content; it can be saved, "
        "shown as a picture and replayed.",
    ),
    Entry(
        "sequence",
        "A case of many steps through the same persistent objects. After each step everything "
        "that a program can see of them is compared.",
    ),
    Entry("oracle", "A rule that judges a candidate on a case."),
    Entry("check", "One oracle judging one candidate on one case."),
    Entry(
        "finding",
        "One root cause: the shrunk case, the first wrong field, and a diagnosis in words.",
    ),
    Entry("run", "All verdicts of one invocation, with environment and seed."),
    Entry("verified", "Every oracle that applies has checked the operation and none objected."),
    Entry("failed", "At least one oracle objected, or the candidate crashed or hung."),
    Entry(
        "unverified",
        "Offered, but no verdict could be reached. The run is then incomplete, never a pass.",
    ),
    Entry("not offered", "The candidate has no function or class of that name."),
    Entry("workload", "A case that is timed, in the same form for every candidate."),
    Entry("peer", "The candidate that the others are timed against, in turn in one process."),
    Entry(
        "noise floor",
        "The smallest difference that this run can tell from none: what a function timed against "
        "itself showed.",
    ),
    Entry("control", "A fixed piece of work, timed all through a run: what the machine is doing."),
    Entry(
        "baseline",
        "The timings of an earlier run with its machine; slower than it allows is the verdict "
        "SLOWER, and a comparison that could not be made leaves the run incomplete.",
    ),
    Entry("query token", "A token that is computed in this step."),
    Entry("computed token", "A token that already lies in the cache: c = s - q of them."),
    Entry("block", "A run of block_size places in the KV cache; a block table lists a row's."),
    Entry("slot", "A token's place in the cache: block id times block size plus offset; -1: none."),
    Entry(
        "stale",
        "Left over from earlier batches: columns behind a row's blocks, entries behind the "
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
    """Where the run took place, and when."""
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
    """What the run was told to do, as resolved."""
    plain = clean_tree(msgspec.to_builtins(run.settings, enc_hook=str))
    rows = [Entry(name, shorten(_value(value), 500)) for name, value in plain.items()]
    return (Entry("seed", str(run.seed)), *(row for row in rows if row.name != "seed"))


def _or_none(value: object) -> str:
    return "none" if value is None else str(value)


def _value(value: object) -> str:
    """A setting as a person writes it: strings bare, the rest as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
