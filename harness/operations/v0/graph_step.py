"""Engine steps that are copied to the buffers of captured V0 graphs."""

from __future__ import annotations

import numpy as np
import torch

from attnproof.harness.cases.engines.v0 import MetadataV0, Step, sequences
from attnproof.harness.model.case import Batch

DECODER = ("slot_mapping", "seq_lens_tensor", "block_tables")
ENCODER = ("encoder_seq_lens_tensor", "cross_slot_mapping", "cross_block_tables")
LONGEST = 4096
"""Longest sequence of a captured graph, in tokens."""


def step_arrays(batch: Batch, pad: int, pattern: int) -> tuple[dict[str, np.ndarray], int]:
    """Return the arrays of the decodes' metadata, and the columns of a graph's block tables."""
    decodes = sequences(batch, Step(pad_size=0))
    rows = len(decodes) + max(0, pad)
    longest = max(len(sequence.blocks) for sequence in decodes)
    width = longest + 1
    tables = np.zeros((rows, longest if pad == -1 else width), dtype=np.int32)
    slots = np.full(rows, -1, dtype=np.int64)
    seq_lens = np.ones(rows, dtype=np.int32)
    for row, decode in enumerate(decodes):
        blocks = [block ^ pattern for block in decode.blocks]
        tables[row, : len(blocks)] = blocks
        column, offset = divmod(decode.context_len, batch.block_size)
        slots[row] = blocks[column] * batch.block_size + offset
        seq_lens[row] = decode.context_len + 1
    encoder_lens = np.arange(rows, dtype=np.int32) + 3 + pattern
    values = (slots, seq_lens, tables, encoder_lens, slots[:0], tables + np.int32(pattern == 0))
    return dict(zip(DECODER + ENCODER, values, strict=True)), width


EARLIER = {
    **{f"buffers.{name}": 77 for name in DECODER + ENCODER},
    **{f"buffers.{name}": 66 for name in ("block_tables", "cross_block_tables")},
    "buffers.slot_mapping": 5,
}
"""Value of every element in the engine step of `filling_step`, by output field."""


def filling_step(rows: int, width: int, device: str) -> dict[str, torch.Tensor]:
    """Return an engine step that fills every element of a graph's buffers."""
    lens = torch.full((rows,), 77, dtype=torch.int32, device=device)
    tables = torch.full((rows, width), 66, dtype=torch.int32, device=device)
    slots = torch.full((rows,), 5, dtype=torch.int64, device=device)
    values = (slots, lens, tables, lens, slots[:0], tables)
    return dict(zip(DECODER + ENCODER, values, strict=True))


def step_metadata(tensors: dict[str, torch.Tensor]) -> MetadataV0:
    """Return metadata of decodes with these tensors."""
    return MetadataV0(
        num_prefills=0,
        num_prefill_tokens=0,
        num_decode_tokens=len(tensors["seq_lens_tensor"]),
        multi_modal_placeholder_index_maps=None,
        enable_kv_scales_calculation=True,
        seq_lens=None,
        max_query_len=1,
        max_prefill_seq_len=0,
        max_decode_seq_len=LONGEST,
        query_start_loc=None,
        seq_start_loc=None,
        context_lens_tensor=None,
        use_cuda_graph=True,
        **tensors,  # type: ignore[arg-type]
    )
