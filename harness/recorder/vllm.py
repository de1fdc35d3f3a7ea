"""Hooks of vLLM: the methods by which it begins steps and hands metadata to builders.

vLLM 0.32 hands metadata over in `AttentionGroup.build_metadata` and its two siblings, and past it
in a builder's `update_block_table`; 0.11 calls the builders' `build` itself.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from attnproof.harness.recorder.imports import replace_method, when_imported
from attnproof.harness.recorder.manager import hook_managers
from attnproof.harness.recorder.recorder import Recorder

_SPLIT = "split_decodes_and_prefills"
_DOORS = {"build_metadata": "build", "build_metadata_for_drafting": "drafting"}
_METADATA = "common_attn_metadata"
_INDEX = {"build": "ubatch_idx", "drafting": "draft_index"}


def hook_engine(recorder: Recorder) -> None:
    """Hook the modules of vLLM, now or when they are imported."""

    def guarded(hook: Callable[[Recorder, ModuleType], None]) -> Callable[[ModuleType], None]:
        return lambda module: recorder.guarded(functools.partial(hook, recorder, module))

    when_imported(
        {
            "vllm.v1.attention.backends.utils": guarded(_hook_split),
            "vllm.v1.worker.utils": guarded(_hook_groups),
            "vllm.v1.worker.gpu_model_runner": guarded(_hook_runner),
            "vllm.v1.worker.gpu.model_runner": guarded(_hook_runner),
            "vllm.v1.core.kv_cache_manager": guarded(hook_managers),
        }
    )


def _hook_runner(recorder: Recorder, module: ModuleType) -> None:
    """Hook the steps and the dummy runs of a model runner."""

    def execute(original: Callable[..., Any]) -> Callable[..., Any]:
        def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            recorder.begin_step(self, scheduler_output)
            try:
                return original(self, scheduler_output, *args, **kwargs)
            finally:
                recorder.end_step()

        return execute_model

    replace_method(module.GPUModelRunner, "execute_model", execute)
    replace_method(module.GPUModelRunner, "_dummy_run", functools.partial(_dummy, recorder))


def _hook_groups(recorder: Recorder, module: ModuleType) -> None:
    """Hook the methods of groups that hand metadata to builders."""
    group = module.AttentionGroup
    if hasattr(group, "build_metadata"):
        for name, door in _DOORS.items():
            replace_method(group, name, functools.partial(_door, recorder, door))
        # Captures have no requests: what is built for them is a dummy, wherever it is built.
        replace_method(
            group, "build_metadata_for_cudagraph_capture", functools.partial(_dummy, recorder)
        )
    else:
        replace_method(group, "get_metadata_builder", functools.partial(_builders, recorder))


def _argument(
    args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str, *default: Any
) -> Any:
    """Return an argument that is given by place or by name."""
    if len(args) > place:
        return args[place]
    return kwargs.get(name, *default) if default else kwargs[name]


def _door(recorder: Recorder, door: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a group that records its metadata."""

    def build(self: Any, *args: Any, **kwargs: Any) -> Any:
        def record() -> None:
            metadata = _argument(args, kwargs, 0, _METADATA)
            index = _argument(args, kwargs, 1, _INDEX[door], 0)
            recorder.build(self, metadata, index, door)
            _hook_update(recorder, type(self.get_metadata_builder(index if door == "build" else 0)))

        recorder.guarded(record)
        result = original(self, *args, **kwargs)
        recorder.built(result)
        return result

    return build


def _dummy(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method during which nothing is recorded."""

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder.begin_dummy()
        try:
            return original(self, *args, **kwargs)
        finally:
            recorder.end_dummy()

    return run


def _hook_update(recorder: Recorder, builder: type) -> None:
    """Hook the method of a builder that takes another block table."""

    def update(original: Callable[..., Any]) -> Callable[..., Any]:
        def update_block_table(
            self: Any, metadata: Any, blk_table: Any, slot_mapping: Any, *args: Any, **kwargs: Any
        ) -> Any:
            recorder.update(self, metadata, blk_table, slot_mapping)
            return original(self, metadata, blk_table, slot_mapping, *args, **kwargs)

        return update_block_table

    if getattr(builder, "supports_update_block_table", False):
        replace_method(builder, "update_block_table", update)


def _builders(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return `get_metadata_builder`, which hooks the class of each builder (vLLM 0.11)."""

    def get_metadata_builder(self: Any, *args: Any, **kwargs: Any) -> Any:
        builder = original(self, *args, **kwargs)
        recorder.guarded(functools.partial(_hook_builder, recorder, self, builder))
        return builder

    return get_metadata_builder


def _hook_builder(recorder: Recorder, group: Any, builder: Any) -> None:
    """Hook the class of a builder that the model runner calls itself."""

    def build(original: Callable[..., Any]) -> Callable[..., Any]:
        def build(self: Any, *args: Any, **kwargs: Any) -> Any:
            def record() -> None:
                group = self._attnproof_group
                index = group.metadata_builders.index(self)
                recorder.build(group, _argument(args, kwargs, 1, _METADATA), index, "build")

            if not recorder.building:  # else a builder calls that of its base class
                recorder.guarded(record)
            outer, recorder.building = recorder.building, True
            try:
                return original(self, *args, **kwargs)
            finally:
                recorder.building = outer

        return build

    builder._attnproof_group = group
    for name in ("build_for_drafting", "build_for_cudagraph_capture"):
        if hasattr(builder, name):
            replace_method(type(builder), name, functools.partial(_dummy, recorder))
    replace_method(type(builder), "build", build)


def _hook_split(recorder: Recorder, module: ModuleType) -> None:
    """Hook the function by which builders split decodes from prefills."""
    before = getattr(module, _SPLIT)

    def split(original: Callable[..., Any]) -> Callable[..., Any]:
        def split_decodes_and_prefills(metadata: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(metadata, *args, **kwargs)
            recorder.split(metadata, args, kwargs, result)
            return result

        return split_decodes_and_prefills

    replace_method(module, _SPLIT, split)
    for other in list(sys.modules.values()):  # imported before the plugin was armed
        if getattr(other, "__dict__", {}).get(_SPLIT) is before:
            setattr(other, _SPLIT, getattr(module, _SPLIT))
