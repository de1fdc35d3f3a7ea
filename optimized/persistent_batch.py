"""State of requests kept between engine steps, and the batch of each (SPEC.md section 7)."""

from __future__ import annotations

from array import array as packed
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from attnproof.reference.checks.persistent_batch import (
    batch_device,
    check_batch_sizes,
    check_block_ids,
    check_dummy,
    check_known,
    check_new_request,
    check_rejected,
    check_row,
    check_schedule,
    check_step,
)
from attnproof.reference.interface import PAD_SLOT_ID
from attnproof.reference.shared import CommonAttentionMetadata

from .host import slot_mapping as loops
from .host.arrays import Array
from .host.persistent_batch import fill_rows, measure
from .step_buffers import StepBuffers, Views

__all__ = [
    "PersistentBatch",
]


class PersistentBatch:
    """State of requests, one row each, in buffers reused for each batch; an `InputBatch`.

    Row state, on the CPU: `req_ids`, ids in row order, None for a hole; `block_table`
    (max_num_reqs, max_num_blocks) int32, with `num_blocks[r]` valid columns in row r;
    `num_blocks` and `num_computed_tokens` (max_num_reqs,) int32. `slot_mapping`
    (max_num_tokens,) int64 is on `device`, -1 after the tokens of a batch. On a device a
    build copies one pinned buffer asynchronously and launches one kernel for the slots;
    no sync. Errors are those of `reference`, raised before anything changes. SPEC.md
    section 7.
    """

    def __init__(
        self,
        max_num_reqs: int,
        max_num_tokens: int,
        max_num_blocks: int,
        block_size: int,
        device: str | torch.device = "cpu",
    ) -> None:
        check_batch_sizes(max_num_reqs, max_num_tokens, max_num_blocks, block_size)
        self.max_num_reqs = max_num_reqs
        self.max_num_tokens = max_num_tokens
        self.max_num_blocks = max_num_blocks
        self.block_size = block_size
        self.device = batch_device(device)

        self.req_ids: list[Any] = []
        self._rows: dict[Any, int] = {}
        self.block_table = torch.zeros((max_num_reqs, max_num_blocks), dtype=torch.int32)
        self.num_blocks = torch.zeros(max_num_reqs, dtype=torch.int32)
        self.num_computed_tokens = torch.zeros(max_num_reqs, dtype=torch.int32)
        self._state = _State(
            self.block_table.numpy(), self.num_blocks.numpy(), self.num_computed_tokens.numpy()
        )

        self.slot_mapping = torch.full(
            (max_num_tokens,), PAD_SLOT_ID, dtype=torch.int64, device=self.device
        )
        self._step = StepBuffers(max_num_reqs, max_num_blocks, self.device)

    @property
    def num_reqs(self) -> int:
        """Number of rows that hold a request."""
        return len(self._rows)

    def add_request(
        self, req_id: Any, block_ids: Sequence[int], num_computed_tokens: int = 0
    ) -> int:
        """Put a request into the lowest hole, else into a new last row; return the row."""
        operation = "PersistentBatch.add_request"
        check_new_request(operation, self, req_id, block_ids, num_computed_tokens)
        row = len(self.req_ids)
        if len(self._rows) < row:
            row = self.req_ids.index(None)
            self.req_ids[row] = req_id
        else:
            self.req_ids.append(req_id)
        self._rows[req_id] = row
        state = self._state
        state.table[row, : len(block_ids)] = block_ids
        state.num_blocks[row] = len(block_ids)
        state.computed[row] = num_computed_tokens
        return row

    def append_blocks(self, req_id: Any, block_ids: Sequence[int]) -> None:
        """Append blocks to the block table of a request."""
        operation = "PersistentBatch.append_blocks"
        check_known(operation, self._rows, req_id)
        row = self._rows[req_id]
        held = int(self._state.num_blocks[row])
        check_block_ids(operation, block_ids, self.max_num_blocks - held)
        self._state.table[row, held : held + len(block_ids)] = block_ids
        self._state.num_blocks[row] = held + len(block_ids)

    def remove_request(self, req_id: Any) -> int:
        """Make the row of a request a hole; return the row."""
        check_known("PersistentBatch.remove_request", self._rows, req_id)
        row = self._rows.pop(req_id)
        self.req_ids[row] = None
        return row

    def condense(self) -> None:
        """Close the holes: move the last request into the first hole until none is left."""
        hole, req_ids = 0, self.req_ids
        while len(req_ids) > len(self._rows):
            last = req_ids.pop()
            if last is not None:
                hole = req_ids.index(None, hole)
                req_ids[hole] = last
                self._rows[last] = hole
                self._state.move(len(req_ids), hole)

    def swap_states(self, i: int, j: int) -> None:
        """Exchange all state of rows i and j, which hold requests."""
        req_ids = self.req_ids
        check_row("PersistentBatch.swap_states", "i", i, req_ids)
        check_row("PersistentBatch.swap_states", "j", j, req_ids)
        req_ids[i], req_ids[j] = req_ids[j], req_ids[i]
        self._rows[req_ids[i]], self._rows[req_ids[j]] = i, j
        self._state.swap(i, j)

    def build(
        self,
        num_scheduled_tokens: Mapping[Any, int],
        num_padded_reqs: int | None = None,
        num_padded_tokens: int | None = None,
    ) -> CommonAttentionMetadata:
        """Build the batch of an engine step, `num_scheduled_tokens[req_id]` tokens a request.

        It is padded up to `num_padded_reqs` rows and `num_padded_tokens` tokens (default:
        no padding). Its tensors are views of the buffers, valid until the next build.
        Errors as in `reference`.
        """
        num_reqs, state = len(self.req_ids), self._state
        arguments = (num_scheduled_tokens, num_padded_reqs, num_padded_tokens)
        query_lens = self._query_lens(num_scheduled_tokens)
        if query_lens is None:
            query_lens = np.array(check_step("PersistentBatch.build", self, *arguments), np.int64)
        tokens, *longest = measure(query_lens, state.computed, state.num_blocks, self.block_size)
        rows = num_reqs if num_padded_reqs is None else num_padded_reqs
        num_tokens = tokens if num_padded_tokens is None else num_padded_tokens
        fits = type(rows) is int and type(num_tokens) is int and num_reqs <= rows
        fits = fits and rows <= self.max_num_reqs and 0 <= tokens <= num_tokens
        if not fits or num_tokens > self.max_num_tokens:
            check_step("PersistentBatch.build", self, *arguments)
        views = self._fill(query_lens, state, rows, clear=False)
        self._fill_slots(views)
        return self._metadata(views, num_tokens, *longest)

    def build_dummy(self, num_reqs: int, num_tokens: int) -> CommonAttentionMetadata:
        """Build a batch without real requests, for an idle rank or a profile run.

        `num_tokens` are spread over `num_reqs` requests; the first requests get one more
        if the division has a remainder. No token is computed, all blocks are 0, all slots
        -1. The rows do not change. The batch is valid until the next build. Errors as in
        `reference`.
        """
        check_dummy("PersistentBatch.build_dummy", self, num_reqs, num_tokens)
        share, rest = divmod(num_tokens, max(num_reqs, 1))
        query_lens = np.full(num_reqs, share, np.int64)
        query_lens[:rest] += 1
        nothing = np.zeros(num_reqs, np.int32)
        state = _State(self._state.table, nothing, nothing)
        views = self._fill(query_lens, state, num_reqs, clear=True)
        self.slot_mapping.fill_(PAD_SLOT_ID)
        longest = share + (rest > 0)
        return self._metadata(views, num_tokens, longest, longest)

    def advance(self, num_scheduled_tokens: Mapping[Any, int]) -> None:
        """Count the tokens of an engine step as computed.

        Errors are those of `build`, but holes are allowed.
        """
        state = self._state
        query_lens = self._query_lens(num_scheduled_tokens)
        if (
            query_lens is None
            or measure(query_lens, state.computed, state.num_blocks, self.block_size)[0] < 0
        ):
            checked = check_schedule("PersistentBatch.advance", self, num_scheduled_tokens)
            query_lens = np.array(checked, np.int64)
        state.computed[: len(query_lens)] += query_lens.astype(np.int32)

    def reject(self, num_rejected_tokens: Mapping[Any, int]) -> None:
        """Take rejected draft tokens of an engine step off the computed ones.

        Errors as in `reference`.
        """
        computed = self._state.computed
        for row, rejected in check_rejected("PersistentBatch.reject", self, num_rejected_tokens):
            computed[row] -= rejected

    def _query_lens(self, scheduled: Mapping[Any, int]) -> Array | None:
        """Return the query tokens of each row; None if the shared check must read them."""
        count = len(self.req_ids)
        if type(scheduled) is not dict or len(scheduled) != count or len(self._rows) != count:
            return None
        try:
            values = list(map(scheduled.__getitem__, self.req_ids))
        except KeyError:
            return None
        if set(map(type, values)) - {int}:
            return None
        try:
            return np.frombuffer(packed("q", values), np.int64)
        except OverflowError:
            return None

    def _fill(self, query_lens: Array, state: _State, rows: int, *, clear: bool) -> Views:
        """Write all buffers of an engine step except the slots, on a device by one async copy."""
        views = self._step.views(rows)
        lengths, block_table, staged = views.lengths, views.block_table, None
        if lengths is None or block_table is None:
            staged, sections = self._step.staged(rows)
            lengths, block_table, clear = sections.lengths(), sections.block_table.numpy(), True
        fill_rows(
            query_lens,
            state.computed,
            state.num_blocks,
            state.table,
            views.mirror_lengths,
            lengths,
            block_table,
            clear,
        )
        if staged is not None:
            self._step.send(staged)
        return views

    def _fill_slots(self, views: Views) -> None:
        """Write the whole slot buffer, by the host loop or by one kernel."""
        tensors = views.tensors
        if views.lengths is None or views.block_table is None:
            from .kernels.slot_mapping import write_slots

            write_slots(
                *(tensors.query_start_loc, tensors.num_computed, tensors.block_table),
                *(self.block_size, None, self.slot_mapping),
            )
            return
        starts, computed = tensors.query_start_loc.data_ptr(), tensors.num_computed.data_ptr()
        rows, columns = tensors.block_table.shape
        loops.fill_slots(
            *(rows, starts, False, computed, False, computed, False),
            *(tensors.block_table.data_ptr(), False, columns, columns, 1, self.block_size),
            *(self.slot_mapping.data_ptr(), self.max_num_tokens, False),
        )

    def _metadata(
        self, views: Views, num_tokens: int, max_query_len: int, max_seq_len: int
    ) -> CommonAttentionMetadata:
        mirrors, tensors = views.mirrors, views.tensors
        return CommonAttentionMetadata(
            query_start_loc=tensors.query_start_loc,
            query_start_loc_cpu=mirrors.query_start_loc,
            seq_lens=tensors.seq_lens,
            seq_lens_cpu=mirrors.seq_lens,
            num_computed_tokens_cpu=mirrors.num_computed,
            num_reqs=tensors.seq_lens.shape[0],
            num_actual_tokens=num_tokens,
            max_query_len=max_query_len,
            max_seq_len=max_seq_len,
            block_table_tensor=tensors.block_table,
            slot_mapping=self.slot_mapping[:num_tokens],
        )


class _State(NamedTuple):
    """Arrays of the row state, with one entry a row each."""

    table: Array
    num_blocks: Array
    computed: Array

    def move(self, source: int, target: int) -> None:
        """Copy row `source` to row `target`, of the block table only the valid columns."""
        held = self.num_blocks[source]
        self.table[target, :held] = self.table[source, :held]
        for state in self[1:]:
            state[target] = state[source]

    def swap(self, i: int, j: int) -> None:
        """Exchange two rows, of the block table only columns that are valid in one of them."""
        held = max(self.num_blocks[i], self.num_blocks[j])
        blocks = self.table[i, :held].copy()
        self.table[i, :held] = self.table[j, :held]
        self.table[j, :held] = blocks
        for state in self[1:]:
            state[i], state[j] = int(state[j]), int(state[i])
