"""Graphs that a builder of a candidate captures, and what they read in a later step."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch

from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.operations.builders.usual_fields import held_fields, read_tensors

_UNIFORM_SINGLE, _UNIFORM = 1, 2
"""Values of `AttentionCGSupport` for graphs of decodes, and of queries of one length."""


def replayed(builder: Any, call: Call, *, larger: bool = False) -> Outputs:
    """Return the tensors that a graph reads, captured on a dummy batch, in the batch's step.

    An engine copies each batch into the same buffers, and builds before it replays a graph. With
    `larger` a batch of the largest size is built in other memory after the capture.
    """
    metadata = call["common_attn_metadata"]
    capture = getattr(builder, "build_for_cudagraph_capture", None)
    if capture is None or not _has_graphs(builder, call):
        return {}
    buffers = _dummy(metadata)
    held = held_fields(capture(buffers))
    captured, addresses = read_tensors(held, call.facts), _addresses(held)
    if larger:
        builder.build(0, call.facts.lay_out_larger()[0])
    for name, buffer in _memory(buffers).items():
        value = getattr(metadata, name)
        buffer[...] = value
    for name in ("max_query_len", "max_seq_len"):
        setattr(buffers, name, getattr(metadata, name))
    builder.build(0, buffers)
    # Memory that was moved, as by `resize_`, is not what the graph reads.
    moved = {name for name, address in _addresses(held).items() if address != addresses[name]}
    read = read_tensors(held, call.facts)
    return {name: captured[name] if name in moved else value for name, value in read.items()}


def _addresses(held: dict[str, Any]) -> dict[str, int | None]:
    return {n: v.data_ptr() if isinstance(v, torch.Tensor) else None for n, v in held.items()}


def _has_graphs(builder: Any, call: Call) -> bool:
    """True if the builder says that graphs of such batches can be captured."""
    asked = getattr(builder, "get_cudagraph_support", None)
    support: Any = 0
    if asked is not None:
        support = asked(call["vllm_config"], call["kv_cache_spec"])
    else:
        for name in ("cudagraph_support", "_cudagraph_support"):
            support = getattr(builder, name, support)
    level = getattr(support, "value", support)
    queries = set(call.facts.batch.query_lens)
    if not level or not queries or 0 in queries:
        return False
    if level == _UNIFORM_SINGLE:
        return queries == {1}
    return level != _UNIFORM or len(queries) == 1


def _dummy(metadata: Any) -> Any:
    """Return a batch of the same queries, without contexts and blocks, in memory of its own."""
    buffers = replace(metadata, **{name: copy_of(v) for name, v in _memory(metadata).items()})
    for name in ("block_table_tensor", "num_computed_tokens_cpu"):
        getattr(buffers, name).zero_()
    buffers.slot_mapping.fill_(-1)
    queries = buffers.query_start_loc.diff()
    buffers.seq_lens.copy_(queries)
    buffers.seq_lens_cpu.copy_(queries)
    return buffers


def _memory(metadata: Any) -> dict[str, Any]:
    values = {f.name: getattr(metadata, f.name) for f in fields(metadata)}
    return {name: value for name, value in values.items() if hasattr(value, "shape") and value.ndim}


def copy_of(value: Any) -> Any:
    """Return a copy of a tensor or an array; other values as they are."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    return value.copy() if hasattr(value, "copy") else value
