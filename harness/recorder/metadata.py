"""The fields of metadata that are recorded: numbers and tensors of known names."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import torch

from attnproof.harness.recorder.copying import DTYPES, Copies
from attnproof.harness.recorder.schema import BuildFrame

# A list, and not all fields: a field that a later engine adds may hold tokens.
_FIELDS = {
    "query_start_loc",
    "query_start_loc_cpu",
    "seq_lens",
    "seq_lens_cpu",
    "num_computed_tokens_cpu",
    "num_reqs",
    "num_actual_tokens",
    "max_query_len",
    "max_seq_len",
    "block_table_tensor",
    "slot_mapping",
    "causal",
    "logits_indices_padded",
    "num_logits_indices",
    "max_logits_per_req",
    "encoder_seq_lens",
    "encoder_seq_lens_cpu",
    "dcp_local_seq_lens",
    "dcp_local_seq_lens_cpu",
    "dcp_local_seq_lens_cpu_upper_bound",
    "positions",
    "is_prefilling",
    "seq_lens_cpu_upper_bound",
    "req_idx",
    "rswa_prefix_lens",
    "replayssm_decode_base_cpu",
}
_TABLE, _SLOTS = "block_table_tensor", "slot_mapping"
_SPARE_COLUMNS = 8
"""Columns behind the longest sequence that are copied too, as they hold stale blocks."""


def build_frame(group: Any, metadata: Any, index: int, door: str, copies: Copies) -> BuildFrame:
    """Return the frame of metadata that a group's builder gets."""
    builder = group.get_metadata_builder(index if door == "build" else 0)
    # A table in blocks of the manager is mapped to the builder's by the group itself.
    mapped = getattr(group, "kernel_block_size", None) is not None
    spec = group.kv_cache_spec if mapped else builder.kv_cache_spec
    frame = BuildFrame(
        door=door,
        group=group.kv_cache_group_id,
        spec=type(spec).__name__,
        block_size=spec.block_size,
        builder=type(builder).__name__,
        ubatch=index,
        numbers={},
        tensors={},
    )
    for name, value in vars(metadata).items():
        if value is None or name[0] == "_":
            continue
        if name not in _FIELDS:
            frame.omitted.append(name)
        elif name == _TABLE:
            _take_table(frame, value, metadata.max_seq_len, copies)
        elif isinstance(value, torch.Tensor) and value.dtype in DTYPES:
            frame.tensors[name] = copies.take(value)
        elif isinstance(value, int):
            frame.numbers[name] = value
        elif isinstance(value, np.ndarray):
            frame.tensors[name] = copies.take(torch.from_numpy(value))
        else:
            frame.omitted.append(name)
    return frame


def table_of(like: BuildFrame, builder: Any, table: Any, slots: Any, copies: Copies) -> BuildFrame:
    """Return the frame of metadata with another block table and other slots."""
    spec = builder.kv_cache_spec
    frame = msgspec.structs.replace(
        like,
        door="update_block_table",
        spec=type(spec).__name__,
        block_size=spec.block_size,
        tensors=dict(like.tensors),
    )
    tokens = like.numbers.get("max_seq_len") or 0
    _take_table(frame, table, int(tokens), copies)
    frame.tensors[_SLOTS] = copies.take(slots)
    return frame


def _take_table(frame: BuildFrame, table: torch.Tensor, longest: int, copies: Copies) -> None:
    """Copy the columns of a block table that sequences up to a length use, and a few more."""
    used = -(-longest // frame.block_size) + _SPARE_COLUMNS
    frame.table_columns = table.shape[1]
    frame.tensors[_TABLE] = copies.take(table[:, :used])
