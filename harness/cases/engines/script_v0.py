"""Constructors of V0 stand-ins for sequences that are shown as programs, one call per object."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from attnproof.harness.cases.engines.v0 import (
    Backend,
    InputBuilder,
    InterData,
    MetadataV0,
    Runner,
    seq_groups,
)
from attnproof.harness.cases.engines.v0 import Step as _Step
from attnproof.harness.model.case import Batch

BLOCK_SIZE = 2
ROWS, BLOCKS = 4, 5
"""Largest numbers of rows and of blocks per row of a graph."""


class Graph(NamedTuple):
    """A captured graph."""

    clone: Any
    """State of the graph's size."""
    buffers: dict[str, torch.Tensor]


def make_runner(backend: str = "FLASH_ATTN") -> Runner:
    """Make a runner on the CPU whose graphs hold ROWS sequences of BLOCKS blocks."""
    tables = np.zeros((ROWS, BLOCKS), dtype=np.int32)
    return Runner(torch.device("cpu"), tables, attn_backend=Backend(backend))


def input_builder() -> InputBuilder:
    """Make an input builder with chunked prefill and without sequence groups."""
    return InputBuilder(make_runner(), None, BLOCK_SIZE, [], True)


def builder_class(base: type[Any]) -> type[Any]:
    """Make a builder's subclass that makes `MetadataV0`."""
    return type("Builder", (base,), {"_metadata_cls": MetadataV0})


def clear_tables(group: InterData) -> None:
    """Clear the block tables of a sequence group, as an engine does after a step."""
    for table in (group.block_tables or {}).values():
        if table is not None:
            table.clear()


def request(number: int, query_len: int, context_len: int, *, image: bool = False) -> InterData:
    """Make the sequence group of one request, with blocks that no other number has.

    The request is a decode if `query_len` is 1 and `context_len` is not 0.
    """
    count = -(-(query_len + context_len) // BLOCK_SIZE)
    blocks = tuple(range(10 * number, 10 * number + count))
    batch = Batch(BLOCK_SIZE, (query_len,), (context_len,), (blocks,))
    group = seq_groups(batch, _Step(images=(0,) if image else ()))[0]
    group.seq_ids = [number]
    group.block_tables = {number: list(blocks)}
    return group


def decodes(rows: int, width: int, value: int) -> MetadataV0:
    """Make the metadata of `rows` decodes whose tensors hold `value` + row."""
    lens = torch.arange(value, value + rows, dtype=torch.int32)
    tables = lens[:, None].repeat(1, width)
    return MetadataV0(
        num_prefills=0,
        num_prefill_tokens=0,
        num_decode_tokens=rows,
        slot_mapping=lens.long(),
        multi_modal_placeholder_index_maps=None,
        enable_kv_scales_calculation=True,
        seq_lens=None,
        seq_lens_tensor=lens,
        max_query_len=1,
        max_prefill_seq_len=0,
        max_decode_seq_len=value + rows,
        query_start_loc=None,
        seq_start_loc=None,
        context_lens_tensor=None,
        block_tables=tables,
        use_cuda_graph=True,
        encoder_seq_lens_tensor=lens + 1,
        cross_slot_mapping=torch.zeros(0, dtype=torch.int64),
        cross_block_tables=tables + 2,
    )
