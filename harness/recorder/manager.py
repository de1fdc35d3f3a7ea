"""The calls of vLLM's KVCacheManager: hooks of its methods, and what is noted of each call."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from multiprocessing.util import Finalize
from types import ModuleType
from typing import Any

from attnproof.harness.recorder.containing import Contained, contained
from attnproof.harness.recorder.header import manager_header
from attnproof.harness.recorder.imports import replace_method
from attnproof.harness.recorder.prefixes import Prefixes, Unnumbered, identity_of
from attnproof.harness.recorder.recorder import Recorder
from attnproof.harness.recorder.schema import (
    Manager,
    ManagerCall,
    ManagerGroup,
    ManagerStep,
    ManagerTable,
)
from attnproof.harness.recorder.settings import Settings
from attnproof.harness.recorder.writing import Writer

_CALLS = "_attnproof_calls"
_STARTS = "new_step_starts"
_METHODS = (
    "get_computed_blocks",
    "allocate_slots",
    "cache_blocks",
    "evict_blocks",
    "free",
    "reset_prefix_cache",
    _STARTS,
    # These change blocks in ways that are not specified: a reader stops there.
    "pop_blocks_for_free",
    "remove_skipped_blocks",
)
# A list, and not all arguments: one that a later engine adds may hold tokens.
_NUMBERS = {
    "num_new_tokens",
    "num_new_computed_tokens",
    "num_lookahead_tokens",
    "num_external_computed_tokens",
    "delay_cache_blocks",
    "num_encoder_tokens",
    "full_sequence_must_fit",
    "reserved_blocks",
    "has_scheduled_reqs",
    "max_cache_hit_length",
    "num_computed_tokens",
}
_UNSPECIFIED = ("dcp_world_size", "pcp_world_size", "num_prefill_lookahead")


def hook_managers(recorder: Recorder, module: ModuleType) -> None:
    """Hook the class of vLLM's managers; each manager has a file of its own."""
    cls = module.KVCacheManager
    replace_method(cls, "__init__", functools.partial(_construction, recorder.settings))
    for name in _METHODS:
        if hasattr(cls, name):
            replace_method(cls, name, functools.partial(_noted, name))


def _construction(settings: Settings, original: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(original)

    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        calls = ManagerCalls(settings)
        calls.begin(self, signature.bind(self, *args, **kwargs).arguments)
        setattr(self, _CALLS, calls)

    return construct


def _noted(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method whose calls are noted with their answers."""
    names = list(inspect.signature(original).parameters)[1:]

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        calls: ManagerCalls | None = getattr(self, _CALLS, None)
        if calls is not None:
            calls.note(self, name, {**dict(zip(names, args, strict=False)), **kwargs}, result)
        return result

    return call


class ManagerCalls(Contained):
    """The calls of one manager, as frames of one engine step each."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._writer: Writer | None = None
        self._step = 0
        self._calls: list[tuple[ManagerCall, Unnumbered]] = []
        self._prefixes = Prefixes()
        """Used by the writing thread only."""
        self._numbers: dict[str, tuple[int, int, list[int]]] = {}
        """Number of each request that has not ended, its noted tokens, and its noted blocks of
        each group."""
        self._count = 0
        os.register_at_fork(after_in_child=self._leave_to_parent)

    @contained
    def begin(self, manager: Any, arguments: dict[str, Any]) -> None:
        """Create the file, with the sizes of the manager."""
        header = manager_header(_sizes(manager, arguments))
        self._writer = Writer(self._settings.folder, header, self.fail)
        # Runs at the end of a process of multiprocessing too, where atexit does not.
        Finalize(None, self.stop, args=("exit",), exitpriority=100)

    @contained
    def note(self, manager: Any, name: str, arguments: dict[str, Any], result: Any) -> None:
        """Note a call that has returned, with what it answered and changed."""
        if name == _STARTS:
            self._hand_over()
            self._step += 1
            if self._settings.limit and self._step > self._settings.limit:
                self.stop("limit")
            return
        request = arguments.get("request")
        numbers = {key: value for key, value in arguments.items() if key in _NUMBERS}
        numbers = {key: value for key, value in numbers.items() if isinstance(value, int)}
        call = ManagerCall(name, numbers=numbers)
        tokens = Unnumbered()
        if request is not None:
            tokens = self._note_request(manager, call, request)
        if name == "get_computed_blocks":
            blocks, call.hits, *_ = result
            call.ids = _ids(blocks)
            if getattr(request, "skip_reading_prefix_cache", False):
                call.numbers["max_cache_hit_length"] = 0
        elif name == "allocate_slots" and result is not None:
            call.ids = _ids(result)
        elif name == "evict_blocks":
            call.ids = [sorted(arguments["block_ids"])]
        elif name == "reset_prefix_cache":
            call.reset = bool(result)
        call.free = manager.block_pool.get_num_free_blocks()
        self._calls.append((call, tokens))

    def _note_request(self, manager: Any, call: ManagerCall, request: Any) -> Unnumbered:
        """Note the state of the request of a call; return its tokens that are not noted."""
        name = request.request_id
        tokens = Unnumbered()
        if name not in self._numbers:
            self._count += 1
            self._numbers[name] = self._count, 0, []
            tokens = Unnumbered(*identity_of(request))
        number, noted, lengths = self._numbers[name]
        call.request, call.known = number, len(request.all_token_ids)
        call.computed = request.num_computed_tokens
        call.in_flight = getattr(request, "num_in_flight_tokens", 0)
        tokens.token_ids = list(request.all_token_ids[noted:])
        tokens.first = noted
        if call.do == "allocate_slots":
            tables = manager.get_blocks(name).blocks
            lengths = lengths or [0] * len(tables)
            call.tables = [_change(*each) for each in zip(tables, lengths, strict=True)]
            lengths = [len(table) for table in tables]
        elif call.do == "free":
            lengths, call.finished = [], bool(request.is_finished())
        self._numbers[name] = number, max(noted, call.known), lengths
        if call.finished:
            del self._numbers[name]
        return tokens

    def _hand_over(self) -> None:
        """Hand the calls of a step to the writing thread."""
        calls, self._calls = self._calls, []
        if not calls or self._writer is None:
            return
        num_bytes = sum(8 * len(tokens.token_ids) + 200 for _, tokens in calls)
        complete = functools.partial(_complete, self._prefixes, self._step, calls)
        if not self._writer.put(complete, num_bytes):
            raise MemoryError("the queue is full, and calls after a lost one say nothing")

    def stop(self, reason: str) -> None:
        """Stop recording, and end the file with the calls of the last step."""
        if self.active and reason == "exit":
            self._hand_over()
        self.active = False
        if self._writer is not None:
            self._writer.close(reason, timeout_s=5.0 if reason == "exit" else 0.0)

    def _leave_to_parent(self) -> None:
        self.active, self._writer = False, None


def _complete(
    prefixes: Prefixes, step: int, calls: list[tuple[ManagerCall, Unnumbered]]
) -> ManagerStep:
    """Return the frame of a step, with numbers of prefixes in the place of tokens."""
    new = [call.request for call, tokens in calls if call.request and tokens.is_new]
    for call, tokens in calls:
        call.prefixes = prefixes.of(call.request, tokens)
        if call.finished:
            prefixes.forget(call.request)
    return ManagerStep(step, [call for call, _ in calls], new)


def _change(table: Any, noted: int) -> ManagerTable:
    """Return the change of a table of which `noted` blocks were noted before."""
    nulls = 0
    while nulls < len(table) and table[nulls].is_null:
        nulls += 1
    first = max(0, min(noted, len(table)) - 1)
    return ManagerTable(nulls, len(table), [block.block_id for block in table[first:]])


def _ids(blocks: Any) -> list[list[int]]:
    return [list(ids) for ids in blocks.get_block_ids()]


def _sizes(manager: Any, arguments: dict[str, Any]) -> Manager:
    config, coordinator = manager.kv_cache_config, manager.coordinator
    lookahead = int(arguments.get("num_hash_lookahead_tokens", 0))
    drafts = coordinator.eagle_group_ids if lookahead else _dropped(coordinator)
    unspecified = [name for name in _UNSPECIFIED if arguments.get(name, 0) > 1]
    if getattr(config, "prefix_cache_retention_interval", None) is not None:
        unspecified.append("prefix_cache_retention_interval")
    return Manager(
        num_blocks=config.num_blocks,
        groups=[
            _group(group.kv_cache_spec, draft=number in drafts)
            for number, group in enumerate(config.kv_cache_groups)
        ],
        max_model_len=manager.max_model_len,
        caching=bool(manager.enable_caching),
        hash_lookahead=lookahead,
        watermark=int(getattr(manager, "watermark_blocks", 0)),
        unspecified=unspecified,
    )


def _dropped(coordinator: Any) -> Any:
    """Return the groups in which a hit drops a block, as releases before 0.33 say it too."""
    if hasattr(coordinator, "drop_eagle_group_ids"):
        return coordinator.drop_eagle_group_ids
    return coordinator.eagle_group_ids


def _group(spec: Any, *, draft: bool) -> ManagerGroup:
    mode = getattr(spec, "mamba_cache_mode", None)
    name = type(spec).__name__
    window = getattr(spec, "attention_chunk_size", None) or getattr(spec, "sliding_window", None)
    return ManagerGroup(f"{name} {mode}" if mode else name, spec.block_size, window or 0, draft)
