"""Recorded metadata as batches in numbers."""

from __future__ import annotations

import numpy as np
import torch

from attnproof.harness.cases.batches.consistency import batch_problem
from attnproof.harness.cases.recorded.steps import Build
from attnproof.harness.cases.recorded.values import ValueProblem
from attnproof.harness.model.case import Batch
from attnproof.reference.shared import CommonAttentionMetadata, CommonAttentionMetadataV32

_WITHOUT_SLOTS = ("MambaSpec", "EncoderOnly")
"""Kinds of groups whose layers write no cache by slots: their slots are all 0."""
_MOST_SPARE = 8
"""Most stale columns that a batch keeps: they hold poison, not what the engine left."""


def batch_of_build(build: Build, metadata: CommonAttentionMetadata) -> Batch:
    """Return the batch of a build (ValueProblem for one that no batch can say)."""
    md = metadata
    offsets = md.query_start_loc_cpu.numpy().astype(np.int64)
    seq_lens = md.seq_lens_cpu.numpy().astype(np.int64)
    query_lens = np.diff(offsets)
    rows = _live_rows(query_lens, seq_lens)
    if offsets[0] or (query_lens < 0).any() or (seq_lens < query_lens).any():
        raise ValueProblem("query_start_loc and seq_lens contradict each other")
    tokens = int(offsets[-1])
    table, size = md.block_table_tensor.numpy(), build.block_size
    if table.ndim != 2 or len(table) != len(seq_lens):
        raise ValueProblem(f"block_table_tensor of shape {table.shape} for {len(seq_lens)} rows")
    no_slots = build.spec.startswith(_WITHOUT_SLOTS)
    counts = [-(-int(length) // size) for length in seq_lens[:rows]]
    if no_slots:
        counts = [table.shape[1]] * rows
    elif max(counts, default=0) > table.shape[1]:
        raise ValueProblem(f"{table.shape[1]} block-table columns for {max(seq_lens)} tokens")
    blocks = tuple(
        tuple(table[row, :count].tolist()) for row, count in zip(range(rows), counts, strict=True)
    )
    spare = table.shape[1] - max(map(len, blocks), default=0)
    batch = Batch(
        block_size=size,
        query_lens=tuple(query_lens[:rows].tolist()),
        computed_lens=tuple((seq_lens - query_lens)[:rows].tolist()),
        blocks=blocks,
        padded_requests=len(seq_lens) - rows,
        padded_tokens=max(0, md.num_actual_tokens - tokens),
        spare_columns=min(spare, _MOST_SPARE),
        query_slack=max(0, md.max_query_len - int(query_lens.max(initial=0))),
        seq_slack=max(0, md.max_seq_len - int(seq_lens.max(initial=0))),
        causal=md.causal is not False,
        logits_indices=_logits(md),
        num_logits=None if md.logits_indices_padded is not None else md.num_logits_indices,
        no_slots=no_slots,
        later=isinstance(md, CommonAttentionMetadataV32),
        prompt_lens=_prompts(md, rows),
        bound_slack=_bound_slack(md),
    )
    problem = batch_problem(batch)
    if problem:
        raise ValueProblem(problem)
    return batch


def _live_rows(query_lens: np.ndarray, seq_lens: np.ndarray) -> int:
    """Return the number of rows before the padded ones at the end."""
    live = np.flatnonzero((query_lens != 0) | (seq_lens != 0))
    return int(live[-1]) + 1 if len(live) else 0


def _logits(md: CommonAttentionMetadata) -> tuple[int, ...] | None:
    if md.logits_indices_padded is None:
        return None
    return tuple(sorted(set(md.logits_indices_padded[: md.num_logits_indices].tolist())))


def _prompts(md: CommonAttentionMetadata, rows: int) -> tuple[int, ...] | None:
    """Return prompt lengths for which `is_prefilling` is as recorded, None without it."""
    flags = getattr(md, "is_prefilling", None)
    if not isinstance(flags, torch.Tensor):
        return None
    computed = md.num_computed_tokens_cpu.tolist()[:rows]
    return tuple(c + int(f) for c, f in zip(computed, flags.tolist(), strict=False))


def _bound_slack(md: CommonAttentionMetadata) -> int:
    bound = getattr(md, "seq_lens_cpu_upper_bound", None)
    if not isinstance(bound, torch.Tensor) or bound.shape != md.seq_lens.shape:
        return 0
    return max(0, int((bound - md.seq_lens).max())) if len(bound) else 0
