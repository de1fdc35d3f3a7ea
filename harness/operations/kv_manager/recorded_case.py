"""A recording of a live manager as a case: the same requests, prefixes, steps and sizes."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from attnproof.harness.model.case import Case
from attnproof.harness.operations.kv_manager.recorded import (
    Answered,
    RecordedCalls,
    name_of,
    sizes_of_recording,
)
from attnproof.harness.operations.kv_manager.steps import LARGEST, NAME, Sizes
from attnproof.harness.operations.shared.params import MOST_STEPS
from attnproof.harness.operations.shared.sequence import Step
from attnproof.harness.recorder.schema import Manager


def fits_a_case(manager: Manager) -> bool:
    """True if the sizes of a manager are those that a case may have."""
    sizes = sizes_of_recording(manager)
    largest = max(group.block_size for group in sizes.groups)
    return max(sizes.num_blocks, sizes.max_model_len, largest) <= LARGEST


def case_of_recording(manager: Manager, recorded: RecordedCalls, end: int) -> Case:
    """Return the case of the first `end` calls.

    A case has no more than two tokens that a model samples behind one prefix, says in which step
    a request is, not in which order its results arrive, and has no larger sizes than `LARGEST`.
    """
    steps = list(_Steps(recorded, end).steps())[:MOST_STEPS]
    sizes = _sizes(sizes_of_recording(manager), manager.watermark)
    return Case(NAME, None, sizes | {"steps": steps})


def _sizes(sizes: Sizes, watermark: int) -> dict[str, Any]:
    size = min(group.block_size for group in sizes.groups)
    kinds = {"full": "attention", "window": "attention"}
    groups = [
        {
            "window": min(group.window, LARGEST),
            "draft": group.draft,
            "kind": kinds.get(group.kind, group.kind),
            "factor": group.block_size // size,
        }
        for group in sizes.groups
    ]
    return {
        "num_blocks": min(sizes.num_blocks, LARGEST),
        "block_size": min(size, LARGEST),
        "groups": groups,
        "max_model_len": min(sizes.max_model_len, LARGEST),
        "caching": sizes.caching,
        "hash_lookahead": sizes.hash_lookahead,
        "watermark": -(-16 * watermark // sizes.num_blocks),
    }


class _Steps:
    """Steps of the calls of a recording."""

    def __init__(self, recorded: RecordedCalls, end: int) -> None:
        self._calls = recorded.calls[:end]
        self._tokens = recorded.tokens
        self._added: list[str] = []
        self._unfinished: list[str] = []
        self._sampled: dict[int, list[int]] = defaultdict(list)
        """Tokens behind each prefix in the order of their first occurrence."""
        self._after: dict[int, Answered] = {}
        """The next call of the same request, by the index of a call."""
        last: dict[str, int] = {}
        for index, each in enumerate(self._calls):
            name = name_of(each.call)
            if name in last:
                self._after[last[name]] = each
            if each.call.do in ("allocate_slots", "free"):
                last[name] = index

    def steps(self) -> Iterator[Step]:
        """Yield the steps."""
        lookups = [None, *(first for first, _ in pairwise(self._calls))]
        for index, (before, each) in enumerate(zip(lookups, self._calls, strict=False)):
            call, name = each.call, name_of(each.call)
            if call.request and name not in self._added:
                yield self._add(name, call.known)
            match call.do:
                case "allocate_slots":
                    yield self._schedule(index, before)
                case "free":
                    yield {
                        "do": "finish" if call.finished else "preempt",
                        "which": self._unfinished.index(name),
                    }
                    if call.finished:
                        self._unfinished.remove(name)
                case "reset_prefix_cache":
                    yield {"do": "reset"}

    def _add(self, name: str, known: int) -> Step:
        tokens = self._tokens[name][:known]
        lengths = [_common(tokens, self._tokens[other]) for other in reversed(self._added)]
        shared = max(lengths, default=0)
        like = 1 + lengths.index(shared) if shared else 0
        self._added.append(name)
        self._unfinished.append(name)
        return {
            "do": "add",
            "tokens": max(1, known) - 1,
            "like": like,
            "shared": shared,
            "rejoins": False,
        }

    def _schedule(self, index: int, before: Answered | None) -> Step:
        each = self._calls[index]
        call, name, numbers = each.call, name_of(each.call), each.call.numbers
        after = self._after.get(index)
        end = call.computed + sum(
            numbers.get(key, 0)
            for key in (
                "num_new_computed_tokens",
                "num_external_computed_tokens",
                "num_new_tokens",
            )
        )
        rejected = 0
        if after is not None and not after.call.in_flight and call.ids is not None:
            rejected = max(0, end - after.call.computed)
        return {
            "do": "schedule",
            "which": self._unfinished.index(name),
            "chunk": max(1, numbers.get("num_new_tokens", 0)) - 1,
            "lookahead": numbers.get("num_lookahead_tokens", 0),
            "sampled": self._sample(name, call.known),
            "joins": each.joins,
            "drafts": max(0, end - call.known) if call.computed else 0,
            "rejected": rejected,
            "ahead": after is not None and after.call.in_flight > 0,
            "external": numbers.get("num_external_computed_tokens", 0),
            "delayed": bool(numbers.get("delay_cache_blocks", False)),
            "short": 0 if before is None else before.short,
        }

    def _sample(self, name: str, known: int) -> int:
        """Return the number of the token that the model samples, as a case has it."""
        tokens = self._tokens[name]
        if not 0 < known < len(tokens):
            return 0
        sampled = self._sampled[tokens[known - 1]]
        if tokens[known] not in sampled:
            sampled.append(tokens[known])
        return sampled.index(tokens[known]) % 2


def _common(first: list[int], second: list[int]) -> int:
    """Return the length of the longest common prefix, whose numbers are equal up to its end."""
    longest = min(len(first), len(second))
    return bisect_left(range(longest), True, key=lambda i: first[i] != second[i])
