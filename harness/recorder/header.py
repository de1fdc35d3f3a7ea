"""The header of a recording: facts about the engine, without names of hosts or files."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any

import torch

from attnproof.harness.recorder.schema import SCHEMA, VERSION, Group, Header, Manager


def header_of(runner: Any, sample: int) -> Header:
    """Return the header of a runner's recording."""
    config = runner.vllm_config
    parallel, model = config.parallel_config, config.model_config
    kinds = ("tensor", "pipeline", "data", "decode_context", "prefill_context")
    world = {kind: int(getattr(parallel, f"{kind}_parallel_size", 1)) for kind in kinds}
    replica = int(getattr(parallel, "data_parallel_rank", 0) or 0)
    groups = runner.kv_cache_config.kv_cache_groups
    return Header(
        schema=SCHEMA,
        version=VERSION,
        recorder=_version("attnproof"),
        engine="vllm",
        engine_version=_version("vllm"),
        runner=type(runner).__name__,
        model=str(getattr(model, "architecture", "")),
        max_model_len=int(model.max_model_len),
        rank=int(parallel.rank) + replica * int(getattr(parallel, "world_size", 1)),
        world=world,
        device=torch.device(runner.device).type,
        groups=[Group(type(g.kv_cache_spec).__name__, g.kv_cache_spec.block_size) for g in groups],
        sample=sample,
    )


def manager_header(manager: Manager) -> Header:
    """Return the header of the recording of a manager, which knows no model and no ranks."""
    return Header(
        schema=SCHEMA,
        version=VERSION,
        recorder=_version("attnproof"),
        engine="vllm",
        engine_version=_version("vllm"),
        runner="",
        model="",
        max_model_len=manager.max_model_len,
        rank=0,
        world={},
        device="",
        groups=[Group(group.spec, group.block_size) for group in manager.groups],
        sample=1,
        manager=manager,
    )


def _version(package: str) -> str:
    return str(getattr(sys.modules.get(package), "__version__", "")) or version(package)
