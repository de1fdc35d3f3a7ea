"""First-generation (V0) metadata taken as its kernels take it: rows, windows, slots."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnproof.harness.cases.engines.v0 import Step, seq_groups, sequences
from attnproof.harness.consumer.batch import (
    array,
    position_breaches,
    sight_breaches,
    slot_breaches,
    truth_of_lists,
)
from attnproof.harness.consumer.sight import CAUSAL, Sight, Truth
from attnproof.harness.model.case import Batch
from attnproof.harness.model.operation import Violation, Outputs


def step_truth(batch: Batch, step: Step) -> Truth:
    """The sequences of a step, prompts first, as a batch."""
    found = sequences(batch, step)
    return truth_of_lists(
        Batch(
            batch.block_size,
            tuple(one.query_len for one in found),
            tuple(one.context_len for one in found),
            tuple(tuple(map(int, one.blocks)) for one in found),
        )
    )


def v0_breaches(batch: Batch, step: Step, outputs: Outputs) -> Iterator[Violation]:
    """What the sequences of a step see through their block tables, and where they write.

    A profile run has no cache. A prompt that is computed at once reads none either, and
    of a chunk that reads only its last blocks no length says so: these rows are left out.
    """
    if step.profile:
        return
    truth = step_truth(batch, step)
    starts = array(outputs["query_start_loc"])
    if not np.array_equal(starts, truth.starts):
        text = f"rows begin at {starts.tolist()[:20]}"
        yield Violation("query_start_loc", "does not give each sequence its tokens", text)
        return
    read, seq_lens = _rows_read(batch, step)
    tokens = np.flatnonzero(read[truth.requests])
    rows, positions = truth.requests[tokens], truth.positions[tokens]
    before = (truth.computed + np.diff(truth.starts) - seq_lens)[rows]
    must = Sight(rows, before, positions + 1, truth.table, truth.block_size)
    given = array(outputs["seq_lens_tensor"])[rows]
    stop = np.maximum(0, given - np.diff(starts)[rows] + truth.indices[tokens] + 1)
    table = array(outputs["block_tables"])
    seen = Sight(rows, np.zeros_like(stop), stop, table, truth.block_size)
    for breach in sight_breaches(truth, must, seen, tokens):
        field = "block_tables" if breach.field == "block_table_tensor" else "seq_lens_tensor"
        yield breach._replace(field=field)
    everyone, computed = np.arange(len(truth.requests)), array(outputs["context_lens_tensor"])
    for breach in position_breaches(truth, starts, computed, everyone):
        yield breach._replace(field="context_lens_tensor")
    unwritten = truth.positions < _first_kept(batch, step, truth)[truth.requests]
    yield from slot_breaches(truth, outputs["slot_mapping"], "slot_mapping", unwritten=unwritten)


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


def _first_kept(batch: Batch, step: Step, truth: Truth) -> np.ndarray:
    """The first position of each sequence that has a slot: a prompt keeps its window's."""
    prompts = np.array([one.is_prompt for one in sequences(batch, step)])
    lens = np.diff(truth.starts)
    kept = np.maximum(0, lens - step.window) if step.window else np.zeros_like(lens)
    first: np.ndarray = np.where(prompts, kept, 0)
    return first


def graph_breaches(batch: Batch, outputs: Outputs) -> Iterator[Violation]:
    """A graph's buffers as a replay takes them: one query a row, then padded rows."""
    truth = step_truth(batch, Step(pad_size=0))
    tokens = np.arange(len(truth.requests))
    given = array(outputs["buffers.seq_lens_tensor"])[tokens]
    table = array(outputs["buffers.block_tables"])
    must = truth.sight(tokens, CAUSAL)
    seen = Sight(tokens, np.zeros_like(given), given, table, truth.block_size)
    for breach in sight_breaches(truth, must, seen, tokens):
        field = "block_tables" if breach.field == "block_table_tensor" else "seq_lens_tensor"
        yield breach._replace(field=f"buffers.{field}")
    yield from slot_breaches(truth, outputs["buffers.slot_mapping"], "buffers.slot_mapping")
