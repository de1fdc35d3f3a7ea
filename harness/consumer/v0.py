"""Check first-generation (V0) metadata the way its kernels use it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnproof.harness.cases.engines.v0 import Step, seq_groups, sequences
from attnproof.harness.consumer.batch import (
    expected_tokens_uncached,
    int64_array,
    position_violations,
    slot_violations,
    visible_key_violations,
)
from attnproof.harness.consumer.visible_keys import CAUSAL, ExpectedTokens, VisibleKeys
from attnproof.harness.model.call import Outputs
from attnproof.harness.model.case import Batch
from attnproof.harness.model.violation import Violation

_FIELDS = {"seq_lens": "seq_lens_tensor", "block_table_tensor": "block_tables"}
"""V0's names of the fields that `visible_key_violations` yields."""


def step_tokens(batch: Batch, step: Step) -> ExpectedTokens:
    """Compute the expected tokens of a step's sequences, prompts first."""
    seqs = sequences(batch, step)
    return expected_tokens_uncached(
        Batch(
            batch.block_size,
            tuple(seq.query_len for seq in seqs),
            tuple(seq.context_len for seq in seqs),
            tuple(tuple(map(int, seq.blocks)) for seq in seqs),
        )
    )


def v0_violations(batch: Batch, step: Step, outputs: Outputs) -> Iterator[Violation]:
    """Check the keys that the sequences of a step see and the slots that they write.

    A profile run has no cache and is not checked. Rows that read no cache, or only the
    last blocks of a chunk, are checked for their slots only.
    """
    if step.profile:
        return
    expected = step_tokens(batch, step)
    starts = int64_array(outputs["query_start_loc"])
    if not np.array_equal(starts, expected.starts):
        text = f"rows begin at {starts.tolist()[:20]}"
        yield Violation("query_start_loc", "does not give each sequence its tokens", text)
        return
    read, seq_lens = _rows_read(batch, step)
    tokens = np.flatnonzero(read[expected.requests])
    rows, positions = expected.requests[tokens], expected.positions[tokens]
    before = (expected.computed + np.diff(expected.starts) - seq_lens)[rows]
    required = VisibleKeys(rows, before, positions + 1, expected.table, expected.block_size)
    got_lens = int64_array(outputs["seq_lens_tensor"])[rows]
    stop = np.maximum(0, got_lens - np.diff(starts)[rows] + expected.indices[tokens] + 1)
    table = int64_array(outputs["block_tables"])
    seen = VisibleKeys(rows, np.zeros_like(stop), stop, table, expected.block_size)
    for violation in visible_key_violations(expected, required, seen, tokens):
        yield violation._replace(field=_FIELDS[str(violation.field)])
    all_tokens = np.arange(len(expected.requests))
    computed = int64_array(outputs["context_lens_tensor"])
    for violation in position_violations(expected, starts, computed, all_tokens):
        yield violation._replace(field="context_lens_tensor")
    unwritten = expected.positions < _first_kept(batch, step, expected)[expected.requests]
    yield from slot_violations(
        expected, outputs["slot_mapping"], "slot_mapping", unwritten=unwritten
    )


def _rows_read(batch: Batch, step: Step) -> tuple[np.ndarray, np.ndarray]:
    """Return two (R,) arrays: True for rows that are checked for their keys, and seq_lens.

    The engine's seq_lens count the tokens at the end of a sequence that its row reads.
    """
    read, seq_lens = [], []
    for group in seq_groups(batch, step):
        for row, length in enumerate(group.seq_lens):
            cut = group.curr_sliding_window_blocks[row] > 0
            # A prompt that is computed at once reads no cache. For a chunk that reads only
            # its last blocks, the metadata holds no length of the tokens read.
            whole = group.prefix_cache_hit or (step.chunked and not cut)
            read.append(whole if group.is_prompt else True)
            seq_lens.append(length)
    return np.array(read, np.bool_), np.array(seq_lens, np.int64)


def _first_kept(batch: Batch, step: Step, expected: ExpectedTokens) -> np.ndarray:
    """Return the first position with a slot, by sequence: a prompt keeps its window only."""
    prompts = np.array([seq.is_prompt for seq in sequences(batch, step)])
    lens = np.diff(expected.starts)
    kept = np.maximum(0, lens - step.window) if step.window else np.zeros_like(lens)
    first: np.ndarray = np.where(prompts, kept, 0)
    return first


def graph_violations(batch: Batch, outputs: Outputs) -> Iterator[Violation]:
    """Check a graph's input buffers: rows with one query each, then padded rows."""
    expected = step_tokens(batch, Step(pad_size=0))
    tokens = np.arange(len(expected.requests))
    seq_lens = int64_array(outputs["buffers.seq_lens_tensor"])[tokens]
    table = int64_array(outputs["buffers.block_tables"])
    required = expected.visible_keys(tokens, CAUSAL)
    seen = VisibleKeys(tokens, np.zeros_like(seq_lens), seq_lens, table, expected.block_size)
    for violation in visible_key_violations(expected, required, seen, tokens):
        yield violation._replace(field=f"buffers.{_FIELDS[str(violation.field)]}")
    yield from slot_violations(expected, outputs["buffers.slot_mapping"], "buffers.slot_mapping")
