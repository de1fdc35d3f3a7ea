"""First-generation (V0) metadata taken as its kernels take it: rows, windows, slots."""

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
from attnproof.harness.model.case import Batch
from attnproof.harness.model.operation import Breach, Outputs


def step_truth(batch: Batch, step: Step) -> ExpectedTokens:
    """The sequences of a step, prompts first, as a batch."""
    found = sequences(batch, step)
    return expected_tokens_uncached(
        Batch(
            batch.block_size,
            tuple(one.query_len for one in found),
            tuple(one.context_len for one in found),
            tuple(tuple(map(int, one.blocks)) for one in found),
        )
    )


def v0_violations(batch: Batch, step: Step, outputs: Outputs) -> Iterator[Breach]:
    """What the sequences of a step see through their block tables, and where they write.

    A profile run has no cache. A prompt that is computed at once reads none either, and
    of a chunk that reads only its last blocks no length says so: these rows are left out.
    """
    if step.profile:
        return
    expected = step_truth(batch, step)
    starts = int64_array(outputs["query_start_loc"])
    if not np.array_equal(starts, expected.starts):
        text = f"rows begin at {starts.tolist()[:20]}"
        yield Breach("query_start_loc", "does not give each sequence its tokens", text)
        return
    read, seq_lens = _rows_read(batch, step)
    tokens = np.flatnonzero(read[expected.requests])
    rows, positions = expected.requests[tokens], expected.positions[tokens]
    before = (expected.computed + np.diff(expected.starts) - seq_lens)[rows]
    must = VisibleKeys(rows, before, positions + 1, expected.table, expected.block_size)
    given = int64_array(outputs["seq_lens_tensor"])[rows]
    stop = np.maximum(0, given - np.diff(starts)[rows] + expected.indices[tokens] + 1)
    table = int64_array(outputs["block_tables"])
    seen = VisibleKeys(rows, np.zeros_like(stop), stop, table, expected.block_size)
    for breach in visible_key_violations(expected, must, seen, tokens):
        field = "block_tables" if breach.field == "block_table_tensor" else "seq_lens_tensor"
        yield breach._replace(field=field)
    everyone, computed = (
        np.arange(len(expected.requests)),
        int64_array(outputs["context_lens_tensor"]),
    )
    for breach in position_violations(expected, starts, computed, everyone):
        yield breach._replace(field="context_lens_tensor")
    unwritten = expected.positions < _first_kept(batch, step, expected)[expected.requests]
    yield from slot_violations(
        expected, outputs["slot_mapping"], "slot_mapping", unwritten=unwritten
    )


def _rows_read(batch: Batch, step: Step) -> tuple[np.ndarray, np.ndarray]:
    """Which rows read the cache, and the last tokens of each that are read, as the engine says."""
    read, seq_lens = [], []
    for group in seq_groups(batch, step):
        for row, length in enumerate(group.seq_lens):
            cut = group.curr_sliding_window_blocks[row] > 0
            whole = group.prefix_cache_hit or (step.chunked and not cut)
            read.append(whole if group.is_prompt else True)
            seq_lens.append(length)
    return np.array(read, np.bool_), np.array(seq_lens, np.int64)


def _first_kept(batch: Batch, step: Step, expected: ExpectedTokens) -> np.ndarray:
    """The first position of each sequence that has a slot: a prompt keeps its window's."""
    prompts = np.array([one.is_prompt for one in sequences(batch, step)])
    lens = np.diff(expected.starts)
    kept = np.maximum(0, lens - step.window) if step.window else np.zeros_like(lens)
    first: np.ndarray = np.where(prompts, kept, 0)
    return first


def graph_violations(batch: Batch, outputs: Outputs) -> Iterator[Breach]:
    """A graph's buffers as a replay takes them: one query a row, then padded rows."""
    expected = step_truth(batch, Step(pad_size=0))
    tokens = np.arange(len(expected.requests))
    given = int64_array(outputs["buffers.seq_lens_tensor"])[tokens]
    table = int64_array(outputs["buffers.block_tables"])
    must = expected.visible_keys(tokens, CAUSAL)
    seen = VisibleKeys(tokens, np.zeros_like(given), given, table, expected.block_size)
    for breach in visible_key_violations(expected, must, seen, tokens):
        field = "block_tables" if breach.field == "block_table_tensor" else "seq_lens_tensor"
        yield breach._replace(field=f"buffers.{field}")
    yield from slot_violations(expected, outputs["buffers.slot_mapping"], "buffers.slot_mapping")
