"""Steps of a case with the names of their requests, and the sizes of its cache.

Every number of a step is taken modulo the possible values, so that steps are valid in any
order. A step that does not apply is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import lcm
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from attnproof.harness.model.case import Count
from attnproof.harness.operations.shared.params import sequence_params
from attnproof.harness.operations.shared.sequence import Step
from attnproof.reference import CacheGroup

NAME = "kv_manager"
LARGEST = 256
"""Largest size of a case."""
_SIZE = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
_GROUP = msgspec.defstruct(
    "Group",
    [
        ("window", _SIZE),
        ("draft", bool),
        ("kind", Literal["attention", "chunked", "mamba"], "attention"),
        ("factor", _SIZE, 1),
    ],
    forbid_unknown_fields=True,
    kw_only=True,
)
"""Window, 0 for full attention, or tokens of a chunk; whether the group is a drafter's; its blocks
in blocks of the others."""
_GROUPS = Annotated[list[_GROUP], msgspec.Meta(max_length=4)]  # type: ignore[valid-type]
PARAMS = sequence_params(
    {
        "add": [
            ("tokens", Count),
            ("like", Count),
            ("shared", Count),
            ("rejoins", bool),
            ("reuses", bool, False),
        ],
        "schedule": [
            ("which", Count),
            ("chunk", Count),
            ("lookahead", Count),
            ("sampled", Count),
            ("joins", bool, False),
            ("drafts", Count, 0),
            ("rejected", Count, 0),
            ("ahead", bool, False),
            ("external", Count, 0),
            ("delayed", bool, False),
            ("withdrawn", bool, False),
            ("short", Count, 0),
        ],
        "finish": [("which", Count)],
        "preempt": [("which", Count)],
        "evict": [("which", Count), ("first", Count)],
        "reset": [],
        "nothing": [("which", Count)],
    },
    [
        ("num_blocks", _SIZE),
        ("block_size", _SIZE),
        ("groups", _GROUPS),
        ("max_model_len", _SIZE),
        ("caching", bool),
        ("hash_lookahead", _SIZE),
        ("watermark", _SIZE, 0),
        ("retention", _SIZE, 0),
    ],
)
"""Sizes of the pool, the groups, tokens behind a block that its hash covers, sixteenths of the
pool that new requests leave free, one more than the multiple of A that is the retention interval,
0 for none, and the steps."""
_SAMPLES = 2
"""Number of token ids that a model samples: requests of equal tokens may part, or not."""


def groups_of(windows: list[int | str], draft: int = -1, factor: int = 1) -> list[dict[str, Any]]:
    """Return groups of these windows (0 for full attention), "chunked" or "mamba".

    `draft` is a drafter's, -1 none; blocks of windows are `factor` times those of the others.
    """
    return [
        {"window": 8, "draft": False, "kind": each, "factor": 1}
        if isinstance(each, str)
        else {"window": each, "draft": i == draft, "kind": "attention", "factor": factor}
        for i, each in enumerate(windows)
    ]


class Schedule(NamedTuple):
    """A step of one request."""

    chunk: int
    """Most tokens of the request to compute."""
    lookahead: int = 0
    """Tokens behind them that get blocks."""
    sampled: int = 0
    """Token that the model samples, and that accepted drafts are."""
    joins: bool = False
    """True if it joins the step of the request before it."""
    drafts: int = 0
    """Drafts behind the last token of a running request, of which the last `rejected` are not
    accepted."""
    rejected: int = 0
    ahead: bool = False
    """True if the next step of the request is scheduled before this one's drafts are judged."""
    external: int = 0
    """Tokens behind the hits that a connector has."""
    delayed: bool = False
    """True if it loads them while the request waits for its next step."""
    withdrawn: bool = False
    """True if the running request is preempted before the step runs."""
    short: int = 0
    """Tokens by which a hit has to be shorter than all but the last token."""


class Call(NamedTuple):
    """A call of the engine."""

    do: str
    """Method of `Engine`."""
    name: str = ""
    """Request, "" of a step without one."""
    numbers: tuple[Any, ...] = ()
    step: Schedule | None = None
    """Numbers of "schedule"."""

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Arguments of the method."""
        return (self.name, *self.numbers) if self.name else self.numbers

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of the method: the numbers of a step that are not the default."""
        defaults = Schedule._field_defaults
        values = {} if self.step is None else self.step._asdict()
        return {name: value for name, value in values.items() if value != defaults.get(name)}


class Sizes(NamedTuple):
    """Arguments of a manager."""

    num_blocks: int
    groups: list[CacheGroup]
    max_model_len: int
    caching: bool
    hash_lookahead: int
    """Tokens behind a block that its hash covers."""
    watermark: float = 0.0
    retention: int | None = None
    """Tokens of a retention interval."""

    @property
    def state_size(self) -> int:
        """Block size of states, at a multiple of which chunks end, 0 without states."""
        return next((each.block_size for each in self.groups if each.kind == "mamba"), 0)


def sizes_of(params: dict[str, Any]) -> Sizes:
    """Return the sizes of a case; any numbers make valid ones, so that a case shrinks."""
    groups: list[CacheGroup] = []
    kinds = [each.get("kind", "attention") for each in params["groups"]]
    for each in params["groups"] or groups_of([0]):
        size = max(1, params["block_size"])
        draft = each["draft"] and not any(group.draft for group in groups)
        match each.get("kind", "attention"), each["window"]:
            case "attention", 0:
                group = CacheGroup("full", size, 0, draft)
            case "attention", window:
                # Blocks of a drafter's window that are smaller than others may be hit less often.
                larger = not draft and "chunked" not in kinds
                factor = max(1, min(4, each.get("factor", 1))) if larger else 1
                group = CacheGroup("window", size * factor, max(2, window), draft)
            case "chunked", tokens:
                group = CacheGroup("chunked", size, max(1, -(-tokens // size)) * size)
            case _:
                group = CacheGroup("mamba", size)
        groups.append(group)
    if len({group.block_size for group in groups}) > 1:
        groups = [each if each.kind != "window" else replace(each, draft=False) for each in groups]
    length = max(1, params["max_model_len"])
    share = min(16, params.get("watermark", 0)) / 16
    numbers: tuple[Any, ...] = length, params["caching"], params["hash_lookahead"], share
    sparse = params.get("retention", 0)
    if sparse and any(group.kind in ("window", "mamba") for group in groups):
        numbers = *numbers, (sparse - 1) % 4 * lcm(*(group.block_size for group in groups))
    return Sizes(max(2, params["num_blocks"]), groups, *numbers)


class Calls:
    """The calls of a case, one after another."""

    def __init__(self, params: dict[str, Any]) -> None:
        self._steps: list[Step] = params["steps"]
        self._length = sizes_of(params).max_model_len
        self._added: list[str] = []
        self._unfinished: list[str] = []
        self._left: list[str] = []

    def __iter__(self) -> Iterator[Call]:
        """Yield the call of each step that has a request to apply to."""
        for step in self._steps:
            call = self._call(step)
            if call is not None:
                yield call

    def _call(self, step: Step) -> Call | None:
        if step["do"] == "add":
            return self._add(step)
        if step["do"] == "reset":
            return Call("reset")
        if not self._unfinished:
            return None
        name = self._unfinished[step["which"] % len(self._unfinished)]
        match step["do"]:
            case "schedule":
                limits = {"chunk": self._length, "sampled": _SAMPLES}
                values = {
                    key: value
                    if isinstance(value, bool)
                    else value % limits.get(key, self._length + 1)
                    for key, value in step.items()
                    if key in Schedule._fields
                }
                values["chunk"] += 1
                return Call("schedule", name, step=Schedule(**values))
            case "evict":
                return Call("evict", name, (step["first"] % self._length,))
            case "finish":
                self._unfinished.remove(name)
                self._left.append(name)
        return Call("allocate_nothing" if step["do"] == "nothing" else step["do"], name)

    def _add(self, step: Step) -> Call:
        """Return the call that adds a request, perhaps by the name of one that has left."""
        reuses = step.get("reuses", False) and self._left
        name = self._left.pop(0) if reuses else f"r{len(self._added)}"
        like = ["", *reversed(self._added)][step["like"] % (len(self._added) + 1)]
        shared = step["shared"] % (self._length + 1)
        numbers = (1 + step["tokens"] % self._length, like, shared, step["rejoins"])
        if not reuses:
            self._added.append(name)
        self._unfinished.append(name)
        return Call("add", name, numbers)
