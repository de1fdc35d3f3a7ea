"""State of requests kept between engine steps, and the batch of each (SPEC.md section 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .checks.persistent_batch import (
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
from .interface import PAD_SLOT_ID
from .shared import CommonAttentionMetadata

__all__ = [
    "PersistentBatch",
]


class PersistentBatch:
    """State of requests, one row each, in buffers reused for each batch; an `InputBatch`.

    Row state, on the CPU: `req_ids`, ids in row order, None for a hole; `block_table`
    (max_num_reqs, max_num_blocks) int32, with `num_blocks[r]` valid columns in row r;
    `num_blocks` and `num_computed_tokens` (max_num_reqs,) int32. Rows without a request
    are stale. The buffers of an engine step are on `device`, their mirrors on the CPU.
    Only `slot_mapping` (max_num_tokens,) int64 may be read beyond the end of a batch: it
    is -1 there. `block_size` and lengths are in tokens. Methods raise MetadataError or
    TypeError before they change anything. SPEC.md section 7.
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
        self.block_table = torch.zeros((max_num_reqs, max_num_blocks), dtype=torch.int32)
        self.num_blocks = torch.zeros(max_num_reqs, dtype=torch.int32)
        self.num_computed_tokens = torch.zeros(max_num_reqs, dtype=torch.int32)

        self._query_start_loc_cpu = torch.zeros(max_num_reqs + 1, dtype=torch.int32)
        self._seq_lens_cpu = torch.zeros(max_num_reqs, dtype=torch.int32)
        self._computed_cpu = torch.zeros(max_num_reqs, dtype=torch.int32)
        self._query_start_loc = torch.zeros_like(self._query_start_loc_cpu, device=self.device)
        self._seq_lens = torch.zeros_like(self._seq_lens_cpu, device=self.device)
        self._block_table = torch.zeros_like(self.block_table, device=self.device)
        self.slot_mapping = torch.full(
            (max_num_tokens,), PAD_SLOT_ID, dtype=torch.int64, device=self.device
        )

    @property
    def num_reqs(self) -> int:
        """Number of rows that hold a request."""
        return sum(req_id is not None for req_id in self.req_ids)

    def add_request(
        self, req_id: Any, block_ids: Sequence[int], num_computed_tokens: int = 0
    ) -> int:
        """Put a request into the lowest hole, else into a new last row; return the row."""
        operation = "PersistentBatch.add_request"
        check_new_request(operation, self, req_id, block_ids, num_computed_tokens)
        if None in self.req_ids:
            row = self.req_ids.index(None)
            self.req_ids[row] = req_id
        else:
            row = len(self.req_ids)
            self.req_ids.append(req_id)
        self.block_table[row, : len(block_ids)] = torch.tensor(block_ids, dtype=torch.int32)
        self.num_blocks[row] = len(block_ids)
        self.num_computed_tokens[row] = num_computed_tokens
        return row

    def append_blocks(self, req_id: Any, block_ids: Sequence[int]) -> None:
        """Append blocks to the block table of a request."""
        operation = "PersistentBatch.append_blocks"
        check_known(operation, self.req_ids, req_id)
        row = self.req_ids.index(req_id)
        held = int(self.num_blocks[row])
        check_block_ids(operation, block_ids, self.max_num_blocks - held)
        end = held + len(block_ids)
        self.block_table[row, held:end] = torch.tensor(block_ids, dtype=torch.int32)
        self.num_blocks[row] = end

    def remove_request(self, req_id: Any) -> int:
        """Make the row of a request a hole; return the row."""
        check_known("PersistentBatch.remove_request", self.req_ids, req_id)
        row = self.req_ids.index(req_id)
        self.req_ids[row] = None
        return row

    def condense(self) -> None:
        """Close the holes: move the last request into the first hole until none is left."""
        while None in self.req_ids:
            last = self.req_ids.pop()
            if last is not None:
                hole, row = self.req_ids.index(None), len(self.req_ids)
                self.req_ids[hole] = last
                for state in (self.block_table, self.num_blocks, self.num_computed_tokens):
                    state[hole] = state[row]

    def swap_states(self, i: int, j: int) -> None:
        """Exchange all state of rows i and j, which hold requests."""
        check_row("PersistentBatch.swap_states", "i", i, self.req_ids)
        check_row("PersistentBatch.swap_states", "j", j, self.req_ids)
        self.req_ids[i], self.req_ids[j] = self.req_ids[j], self.req_ids[i]
        for state in (self.block_table, self.num_blocks, self.num_computed_tokens):
            row_i = state[i].clone()
            state[i] = state[j]
            state[j] = row_i

    def build(
        self,
        num_scheduled_tokens: Mapping[Any, int],
        num_padded_reqs: int | None = None,
        num_padded_tokens: int | None = None,
    ) -> CommonAttentionMetadata:
        """Build the batch of an engine step, `num_scheduled_tokens[req_id]` tokens a request.

        It is padded up to `num_padded_reqs` rows and `num_padded_tokens` tokens (default:
        no padding). Its tensors are views of the buffers, valid until the next build.
        Raise MetadataError for a hole, a request without an entry, an entry without a
        request, blocks that do not cover the tokens, a batch larger than the buffers, and
        padding to fewer rows or tokens than there are.
        """
        query_lens = check_step(
            "PersistentBatch.build", self, num_scheduled_tokens, num_padded_reqs, num_padded_tokens
        )
        num_reqs, num_tokens = len(query_lens), sum(query_lens)
        computed = self.num_computed_tokens[:num_reqs].tolist()
        slots = []
        for row in range(num_reqs):
            blocks = self.block_table[row, : int(self.num_blocks[row])].tolist()
            for i in range(query_lens[row]):
                position = computed[row] + i
                block = blocks[position // self.block_size]
                slots.append(block * self.block_size + position % self.block_size)
            self._block_table[row, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        padded_rows = 0 if num_padded_reqs is None else num_padded_reqs - num_reqs
        return self._metadata(
            query_lens + [0] * padded_rows,
            computed + [0] * padded_rows,
            slots,
            num_tokens if num_padded_tokens is None else num_padded_tokens,
        )

    def build_dummy(self, num_reqs: int, num_tokens: int) -> CommonAttentionMetadata:
        """Build a batch without real requests, for an idle rank or a profile run.

        `num_tokens` are spread over `num_reqs` requests; the first requests get one more
        if the division has a remainder. No token is computed, all blocks are 0, all slots
        -1. The rows do not change. The batch is valid until the next build. Raise
        MetadataError for more requests or tokens than the buffers or rows can hold.
        """
        check_dummy("PersistentBatch.build_dummy", self, num_reqs, num_tokens)
        query_lens = []
        for row in range(num_reqs):
            one_more = row < num_tokens % num_reqs
            query_lens.append(num_tokens // num_reqs + one_more)
        self._block_table[:num_reqs] = 0
        return self._metadata(query_lens, [0] * num_reqs, [], num_tokens)

    def advance(self, num_scheduled_tokens: Mapping[Any, int]) -> None:
        """Count the tokens of an engine step as computed.

        Errors are those of `build`, but holes are allowed.
        """
        query_lens = check_schedule("PersistentBatch.advance", self, num_scheduled_tokens)
        for row, query_len in enumerate(query_lens):
            self.num_computed_tokens[row] += query_len

    def reject(self, num_rejected_tokens: Mapping[Any, int]) -> None:
        """Take rejected draft tokens of an engine step off the computed ones.

        `num_rejected_tokens` has the requests with rejected drafts. Raise MetadataError for an
        unknown request and for more tokens than are computed, before anything changes.
        """
        for row, rejected in check_rejected("PersistentBatch.reject", self, num_rejected_tokens):
            self.num_computed_tokens[row] -= rejected

    def _metadata(
        self, query_lens: list[int], computed: list[int], slots: list[int], num_tokens: int
    ) -> CommonAttentionMetadata:
        """Write all buffers except the block table, and return views of the parts in use."""
        num_reqs = len(query_lens)
        offsets, seq_lens = [0], []
        for query_len, computed_len in zip(query_lens, computed, strict=True):
            offsets.append(offsets[-1] + query_len)
            seq_lens.append(computed_len + query_len)
        for buffer, values in (
            (self._query_start_loc, offsets),
            (self._query_start_loc_cpu, offsets),
            (self._seq_lens, seq_lens),
            (self._seq_lens_cpu, seq_lens),
            (self._computed_cpu, computed),
        ):
            buffer[: len(values)] = torch.tensor(values, dtype=torch.int32)
        self.slot_mapping.fill_(PAD_SLOT_ID)
        self.slot_mapping[: len(slots)] = torch.tensor(slots, dtype=torch.int64)
        return CommonAttentionMetadata(
            query_start_loc=self._query_start_loc[: num_reqs + 1],
            query_start_loc_cpu=self._query_start_loc_cpu[: num_reqs + 1],
            seq_lens=self._seq_lens[:num_reqs],
            seq_lens_cpu=self._seq_lens_cpu[:num_reqs],
            num_computed_tokens_cpu=self._computed_cpu[:num_reqs],
            num_reqs=num_reqs,
            num_actual_tokens=num_tokens,
            max_query_len=max(query_lens, default=0),
            max_seq_len=max(seq_lens, default=0),
            block_table_tensor=self._block_table[:num_reqs],
            slot_mapping=self.slot_mapping[:num_tokens],
        )
