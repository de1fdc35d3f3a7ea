"""Recorded calls of a live manager, and what the ledger finds wrong in their answers.

A recording says what each call got, so nothing is planned here: tokens that a step computes are
those of the request as it ends, since tokens are only appended, and rejected drafts never are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NamedTuple

from attnproof.harness.cases.recorded.values import ValueProblem
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.kv_manager.contents import Contents
from attnproof.harness.operations.kv_manager.ledger import Ledger
from attnproof.harness.operations.kv_manager.memory import NULL, Memory
from attnproof.harness.operations.kv_manager.requests import Plan, Requests
from attnproof.harness.operations.kv_manager.steps import Call, Sizes
from attnproof.harness.recorder.schema import Manager, ManagerCall, ManagerStep
from attnproof.reference import CacheGroup, CacheRequest, MetadataError
from attnproof.reference.checks.kv_manager import check_manager

_KINDS: dict[str, Any] = {
    "FullAttentionSpec": "full",
    "MLAAttentionSpec": "full",
    "SlidingWindowSpec": "window",
    "SlidingWindowMLASpec": "window",
    "ChunkedLocalAttentionSpec": "chunked",
    "MambaSpec align": "mamba",
}
_PREFIX_BYTES = 8
_MOST_TOKENS = 2**26
"""Most tokens and blocks of a call, above those of the longest model."""
_LOOKUP, _ALLOCATION = "get_computed_blocks", "allocate_slots"


class Answered(NamedTuple):
    """A recorded call, and its place."""

    frame: int
    """Frame of the file, from 1."""
    call: ManagerCall
    joins: bool
    """True if it is not the first allocation of its engine step."""

    @property
    def short(self) -> int:
        """Tokens by which a hit of a lookup has to be shorter than all but the last token."""
        most = self.call.numbers.get("max_cache_hit_length")
        return 0 if most is None else max(0, self.call.known - 1 - most)


def sizes_of_recording(manager: Manager) -> Sizes:
    """Return the sizes of a recorded manager (ValueProblem for one that is not specified)."""
    groups = []
    for each in manager.groups:
        kind = _KINDS.get(each.spec)
        if kind is None:
            raise ValueProblem(f"a group of {each.spec} is not specified")
        window = each.window if kind in ("window", "chunked") else 0
        groups.append(CacheGroup(kind, each.block_size, window, each.draft))
    if manager.unspecified:
        raise ValueProblem(f"{', '.join(manager.unspecified)}: not specified")
    lengths = manager.max_model_len, manager.caching, manager.hash_lookahead
    try:
        check_manager(manager.num_blocks, groups, *lengths, watermark=0)
    except MetadataError as error:
        raise ValueProblem(f"not specified: {error}") from None
    return Sizes(manager.num_blocks, groups, *lengths)


@dataclass
class RecordedCalls:
    """The calls of a file in their order, and the tokens of each request at its end."""

    calls: list[Answered] = field(default_factory=list)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    """Numbers of the prefixes that end with each token, by the request's name."""

    def add(self, frame: int, step: ManagerStep) -> None:
        """Add the calls of a step (ValueProblem for one of a request that was never added)."""
        self.tokens |= {"r" + str(number): [] for number in step.new}
        allocated = False
        for call in step.calls:
            name = name_of(call)
            if call.request and name not in self.tokens:
                raise ValueProblem(
                    f"{call.do} of request {call.request}, which no call before has added"
                )
            changes = [each for table in call.tables for each in (table.length, table.nulls)]
            if max([*call.numbers.values(), *changes], default=0) > _MOST_TOKENS:
                raise ValueProblem(f"{call.do}: a number above {_MOST_TOKENS}")
            if len(call.prefixes) % _PREFIX_BYTES:
                raise ValueProblem(f"{call.do}: {len(call.prefixes)} bytes are no numbers")
            if call.request:
                numbers = memoryview(call.prefixes).cast("Q").tolist()
                self.tokens[name] += numbers
                if not call.known <= len(self.tokens[name]):
                    raise ValueProblem(f"{call.do} of request {call.request}: tokens are missing")
            self.calls.append(Answered(frame, call, allocated))
            allocated |= call.do == _ALLOCATION


def name_of(call: ManagerCall) -> str:
    """Return the name of the request of a call."""
    return "r" + str(call.request)


class _Step(NamedTuple):
    """Recorded step of a request: the fields of `Schedule` that the ledger reads."""

    plan: Plan
    joins: bool
    short: int
    withdrawn: bool = False


class _RecordedRequests(Requests):
    """Requests as a recording shows them."""

    def __init__(self, max_model_len: int, tokens: dict[str, list[int]]) -> None:
        super().__init__(max_model_len)
        self._tokens = tokens

    def show(self, call: ManagerCall) -> None:
        """Let a request be as it is in a call."""
        name = name_of(call)
        tokens = self._tokens[name][: call.known]
        self.by_name[name] = CacheRequest(name, tokens, call.computed, call.in_flight)

    def uncomputed(self, name: str) -> int:  # noqa: ARG002 - the engine has decided
        """Return a number above 0: what is recorded was computed."""
        return 1

    def starts_step(self, name: str, joins: bool) -> bool:  # noqa: ARG002 - as recorded
        """True if the allocation is the first one of an engine step."""
        return not joins

    def plan(self, name: str, hits: int, step: Any) -> Plan:  # noqa: ARG002 - as recorded
        """Return what was recorded."""
        plan: Plan = step.plan
        return plan

    def advance(self, name: str, hits: int, plan: Plan, step: Any) -> None:  # noqa: ARG002
        """Count tokens as computed, drafts too; the request has its later tokens from now on."""
        request, tokens = self.by_name[name], self._tokens[name]
        end = request.num_computed_tokens + hits + plan.external + plan.new
        request.num_computed_tokens = min(end, len(tokens))
        request.token_ids = tokens


class _NumberedMemory(Memory):
    """Memory of recorded tokens, which are numbers of prefixes already."""

    def prefixes(self, tokens: list[int]) -> list[int]:
        """Return the tokens."""
        return tokens


class _OwnContents(Contents):
    """Contents of which a step reads what its own queries see.

    A block that another request's write has spoilt is read in that request's next step.
    """

    def write_and_read(self, name: str, start: int, external: int, room: int) -> None:
        """Write the keys of a step, and read what its queries see."""
        first, end = start + external, self._requests.by_name[name].num_computed_tokens
        if external:
            self._write(name, start, first, first)
        self._read(name, first, first, states_only=True)
        if end > first:
            self._write(name, first, end, room)
        self._read(name, first, end)


class RecordedLedger(Ledger):
    """The ledger of recorded calls."""

    requests: _RecordedRequests

    def __init__(self, manager: Manager, recorded: RecordedCalls) -> None:
        super().__init__(sizes_of_recording(manager))
        self.requests = _RecordedRequests(manager.max_model_len, recorded.tokens)
        self._memory = _NumberedMemory()
        self._contents = _OwnContents(self._layout, self._memory, self._tables, self.requests)
        self._recorded = recorded
        self._reserve = manager.watermark
        self._gate = 0
        """Blocks of the tokens that a request has beyond those of its step, if all must fit."""
        self._seen_tables: dict[str, list[list[int]]] = {}

    def violations(self, between_calls: Callable[[], None]) -> Iterator[tuple[int, Violation]]:
        """Yield what is wrong in the first wrong answer, and the index of its call.

        `between_calls` may raise to stop: a call looks at all cached blocks.
        """
        calls = self._recorded.calls
        lookup: Answered | None = None
        for index, (each, after) in enumerate(zip_longest(calls, calls[1:])):
            between_calls()
            if each.call.do == _LOOKUP and after is not None and _adopts(each.call, after.call):
                lookup = each
                continue
            violations = list(self._judge(each, lookup))
            lookup = None
            if violations:
                yield from ((index, violation) for violation in violations)
                return

    def _judge(self, each: Answered, lookup: Answered | None) -> Iterator[Violation]:
        call, name = each.call, name_of(each.call)
        seen: dict[str, Any] = {"free": call.free, "tables": {}}
        self._answered.clear()
        if call.request:
            self.requests.show(call)
        if call.do != _ALLOCATION:
            yield from self.judge(Call(call.do, name, (each,)), seen)
            return
        waits, groups = name not in self._tables, len(self._layout.sizes)
        hits = call.numbers.get("num_new_computed_tokens", 0)
        if waits and (lookup is None or lookup.call.hits != hits):
            raise ValueProblem(f"frame {each.frame}: hits that no lookup before it has answered")
        if waits and lookup is not None:
            seen |= {"hits": hits, "hit ids": lookup.call.ids or [[]] * groups}
        seen |= {"fits": call.ids is not None, "new ids": call.ids}
        seen["tables"] = {name: self._table_after(call)}
        step: Any = _Step(self._plan(call, hits), each.joins, 0 if lookup is None else lookup.short)
        self._set_reserve(call, step.plan)
        yield from self.judge(Call("schedule", name, (), step), seen)

    def _plan(self, call: ManagerCall, hits: int) -> Plan:
        numbers = call.numbers
        return Plan(
            known=0 if numbers.get("delay_cache_blocks") else call.known,
            computed=call.computed + hits,
            in_flight=call.in_flight,
            external=numbers.get("num_external_computed_tokens", 0),
            new=numbers.get("num_new_tokens", 0),
            lookahead=numbers.get("num_lookahead_tokens", 0),
        )

    def _set_reserve(self, call: ManagerCall, plan: Plan) -> None:
        """Keep what an allocation has to leave free, and what it has to fit beyond its step."""
        spare = self._reserve if call.numbers.get("has_scheduled_reqs", True) else 0
        self._watermark = spare + call.numbers.get("reserved_blocks", 0)
        room = plan.computed + plan.external + plan.new + plan.lookahead
        full = min(call.known, self._max_model_len)
        sizes = self._layout.sizes if call.numbers.get("full_sequence_must_fit") else []
        self._gate = sum(max(0, -(-full // size) - -(-room // size)) for size in sizes)

    def _check_room(self, name: str, hits: int, fits: bool, needed: int, free: int) -> None:
        if fits or needed + self._gate <= free:
            super()._check_room(name, hits, fits, needed, free)

    def _table_after(self, call: ManagerCall) -> list[list[int]]:
        tables = self._seen_tables.setdefault(name_of(call), [[] for _ in self._layout.sizes])
        if len(call.tables) != len(tables):
            raise ValueProblem(f"{len(call.tables)} block tables for {len(tables)} groups")
        for table, change in zip(tables, call.tables, strict=True):
            table[change.length - len(change.tail) :] = change.tail
            table[: change.nulls] = [NULL] * change.nulls
        return tables

    def _apply(self, call: Call, seen: dict[str, Any]) -> None:
        if call.step is not None:
            super()._apply(call, seen)
            return
        [each] = call.numbers
        recorded: ManagerCall = each.call
        match call.do:
            case "get_computed_blocks":
                step: Any = _Step(Plan(0, 0, 0, 0, 0, 0), True, each.short)
                answers = {"hits": recorded.hits, "hit ids": recorded.ids}
                self._check_hits(call.name, step, answers)
            case "free":
                self._seen_tables.pop(call.name, None)
                if call.name in self._tables:
                    self._withdraw(call.name)
            case "cache_blocks":
                if call.name in self._tables:
                    computed = recorded.numbers["num_computed_tokens"]
                    self._publish(call.name, computed, recorded.known)
                    self.requests.by_name[call.name].token_ids = self._recorded.tokens[call.name]
            case "evict_blocks":
                blocks = [block for ids in recorded.ids or () for block in ids]
                for block in blocks:
                    self._cached.keys.pop(block, None)
                self._cached.adopt(blocks)
            case "reset_prefix_cache":
                super()._apply(Call("reset"), {"reset": recorded.reset})
            case _:
                raise ValueProblem(f"{call.do} is not specified")


def _adopts(lookup: ManagerCall, after: ManagerCall) -> bool:
    return after.do == _ALLOCATION and after.request == lookup.request
