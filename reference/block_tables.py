"""Block tables of the request slots of a persistent batch (SPEC.md section 13)."""

from __future__ import annotations

import torch

from .checks.block_tables import (
    check_appended,
    check_dummy_size,
    check_gather,
    check_ranks,
    check_room,
    check_sizes,
    check_slot_inputs,
)
from .interface import PAD_SLOT_ID

__all__ = [
    "BlockTables",
]


class BlockTables:
    """Block ids of `max_num_reqs` request slots in each KV-cache group, and a step's tensors.

    Group g has blocks of `block_sizes[g]` tokens and rows of `max_num_blocks_per_group[g]`
    columns. Under context parallelism (`cp_size` ranks, turns of `cp_interleave` positions)
    the blocks of a group with `dcp_sharded` hold the positions of rank `cp_rank` only.
    A group without `slot_mapping_enabled` has no slots. `input_block_tables` and
    `slot_mappings` keep their addresses: CUDA graphs capture them. Malformed sizes raise
    MetadataError or TypeError. SPEC.md section 13.
    """

    def __init__(
        self,
        block_sizes: list[int],
        max_num_reqs: int,
        max_num_batched_tokens: int,
        max_num_blocks_per_group: list[int],
        device: torch.device,
        cp_size: int = 1,
        cp_rank: int = 0,
        cp_interleave: int = 1,
        slot_mapping_enabled: list[bool] | None = None,
        dcp_sharded: list[bool] | None = None,
    ) -> None:
        groups = len(block_sizes)
        enabled = [True] * groups if slot_mapping_enabled is None else slot_mapping_enabled
        sharded = [True] * groups if dcp_sharded is None else dcp_sharded
        check_sizes(block_sizes, max_num_reqs, max_num_batched_tokens, max_num_blocks_per_group)
        check_ranks(block_sizes, cp_size, cp_rank, cp_interleave, enabled, sharded)
        self.block_sizes = block_sizes
        self.max_num_reqs = max_num_reqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.cp_size = cp_size
        self.cp_rank = cp_rank
        self.cp_interleave = cp_interleave
        self.num_kv_cache_groups = groups
        self._widths = list(max_num_blocks_per_group)
        self._enabled = list(enabled)
        self._sharded = list(sharded)

        self.input_block_tables = [
            torch.zeros((max_num_reqs, width), dtype=torch.int32, device=device)
            for width in self._widths
        ]
        self.slot_mappings = torch.zeros(
            (groups, max_num_batched_tokens), dtype=torch.int64, device=device
        )
        self.device = self.slot_mappings.device  # with its index, as other tensors have it
        self._rows: list[list[list[int]]] = [
            [[] for _ in range(max_num_reqs)] for _ in range(groups)
        ]
        self._staged: list[list[list[int]]] = [
            [[] for _ in range(max_num_reqs)] for _ in range(groups)
        ]

    def append_block_ids(
        self, req_index: int, new_block_ids: tuple[list[int], ...], overwrite: bool
    ) -> None:
        """Stage block ids of a request slot, one list for each group.

        They follow the ids that the row has, or replace them with `overwrite`. A row that
        would be longer than its columns is a RuntimeError, and no group's row changes.
        """
        check_appended(
            self.max_num_reqs, self.num_kv_cache_groups, req_index, new_block_ids, overwrite
        )
        rows = []
        for group, block_ids in enumerate(new_block_ids):
            kept = [] if overwrite else self._staged[group][req_index]
            check_room(group, req_index, len(kept) + len(block_ids), self._widths[group])
            rows.append([*kept, *block_ids])
        for group, row in enumerate(rows):
            self._staged[group][req_index] = row

    def apply_staged_writes(self) -> None:
        """Make the staged block ids those of the tables."""
        self._rows = [[list(row) for row in rows] for rows in self._staged]

    def gather_block_tables(
        self,
        idx_mapping: torch.Tensor,
        num_reqs_padded: int,
        out: tuple[torch.Tensor, ...] | None = None,
        out_ptrs: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Return each group's block table of a step, (num_reqs_padded, W_g) int32.

        Row r has the blocks of request slot `idx_mapping[r]` (R,), then 0; dummy rows (-1)
        and padded rows are 0. They are written to `out` (default: `input_block_tables`);
        `out_ptrs` are the addresses of `out`.
        """
        tables = tuple(self.input_block_tables) if out is None else out
        check_gather(
            self._widths,
            self.device,
            self.max_num_reqs,
            idx_mapping,
            num_reqs_padded,
            tables,
            out_ptrs,
        )
        mapping = idx_mapping.tolist()
        for group, table in enumerate(tables):
            for r in range(num_reqs_padded):
                slot = mapping[r] if r < len(mapping) else -1
                blocks = self._rows[group][slot] if slot >= 0 else []
                padding = [0] * (self._widths[group] - len(blocks))
                table[r] = torch.tensor(blocks + padding, dtype=torch.int32)
        return tuple(table[:num_reqs_padded] for table in tables)

    def get_dummy_block_tables(self, num_reqs: int) -> tuple[torch.Tensor, ...]:
        """Return the first rows of `input_block_tables`, set to 0."""
        check_dummy_size("get_dummy_block_tables", "num_reqs", num_reqs, self.max_num_reqs)
        return tuple(table[:num_reqs].zero_() for table in self.input_block_tables)

    def compute_slot_mappings(
        self,
        idx_mapping: torch.Tensor,
        query_start_loc: torch.Tensor,
        positions: torch.Tensor,
        num_tokens_padded: int,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the cache slot of each token in each group, (G, num_tokens_padded) int64.

        `query_start_loc` has at least R + 1 int32 offsets, `positions` at least as many
        int64 as there are tokens. They are written to `out` (default: `slot_mappings`),
        -1 from the last token to the end of the whole buffer. Tokens of dummy rows, of
        other ranks, of groups without slots and beyond a row's blocks have -1.
        """
        slots = self.slot_mappings if out is None else out
        check_slot_inputs(
            self.num_kv_cache_groups,
            self.max_num_reqs,
            idx_mapping,
            query_start_loc,
            positions,
            num_tokens_padded,
            slots,
            self.device,
        )
        mapping, starts = idx_mapping.tolist(), query_start_loc.tolist()
        position_of = positions.tolist()
        slots.fill_(PAD_SLOT_ID)
        for group in range(self.num_kv_cache_groups):
            for r, slot in enumerate(mapping):
                tokens = range(starts[r], starts[r + 1])
                row_slots = [self._slot_of(group, slot, position_of[token]) for token in tokens]
                slots[group, starts[r] : starts[r + 1]] = torch.tensor(row_slots, dtype=slots.dtype)
        return slots[:, :num_tokens_padded]

    def get_dummy_slot_mappings(self, num_tokens: int) -> torch.Tensor:
        """Return the first columns of `slot_mappings`, after -1 was written to all of it."""
        most = self.max_num_batched_tokens
        check_dummy_size("get_dummy_slot_mappings", "num_tokens", num_tokens, most)
        self.slot_mappings.fill_(PAD_SLOT_ID)
        return self.slot_mappings[:, :num_tokens]

    def _slot_of(self, group: int, slot: int, position: int) -> int:
        """Return the cache slot of a position of a request slot on this rank, -1 for none."""
        if slot < 0 or not self._enabled[group]:
            return PAD_SLOT_ID
        turn = self.cp_interleave
        if self.cp_size > 1 and self._sharded[group]:
            if position // turn % self.cp_size != self.cp_rank:
                return PAD_SLOT_ID
            position = position // (turn * self.cp_size) * turn + position % turn
        blocks, block_size = self._rows[group][slot], self.block_sizes[group]
        column = position // block_size
        if column >= len(blocks):
            return PAD_SLOT_ID
        return blocks[column] * block_size + position % block_size
