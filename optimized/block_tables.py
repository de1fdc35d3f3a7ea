"""Block tables of the request slots of a persistent batch (SPEC.md section 13)."""

from __future__ import annotations

from itertools import chain

import torch

from attnproof.reference.checks.block_tables import (
    check_appended,
    check_dummy_size,
    check_gather,
    check_ranks,
    check_room,
    check_sizes,
    check_slot_inputs,
)
from attnproof.reference.interface import PAD_SLOT_ID

from .checking import checks
from .dispatch import on_device, staging, upload
from .host import block_tables as loops

__all__ = [
    "BlockTables",
]

_checked = checks.follow(globals())

_INT64 = torch.int64


class BlockTables:
    """Block ids of `max_num_reqs` request slots in each KV-cache group, and a step's tensors.

    Arguments, results and errors as in `reference`. On a device `apply_staged_writes` makes
    one asynchronous copy and one launch, `gather_block_tables` and `compute_slot_mappings`
    one launch each for all groups; none synchronises. SPEC.md section 13.
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
        self._ranks = [cp_size if is_sharded else 1 for is_sharded in sharded]

        self.slot_mappings = torch.zeros(
            (groups, max_num_batched_tokens), dtype=_INT64, device=device
        )
        self.device = self.slot_mappings.device  # with its index, as other tensors have it
        self._tables = [self._zeros(max_num_reqs, width) for width in self._widths]
        self._num_blocks = self._zeros(groups, max_num_reqs)
        self.input_block_tables = [self._zeros(max_num_reqs, width) for width in self._widths]
        self._ends = [[0] * max_num_reqs for _ in range(groups)]
        self._staged: dict[tuple[int, int], tuple[int, list[int]]] = {}
        """First column and ids of each row that changes, by group and slot."""
        self._on_device = on_device(self._num_blocks)
        if self._on_device:
            self._place(sharded)
        else:
            self._arrays = [table.numpy() for table in self._tables]
            self._counts = self._num_blocks.numpy()

    def _zeros(self, rows: int, columns: int) -> torch.Tensor:
        return torch.zeros((rows, columns), dtype=torch.int32, device=self.device)

    def _place(self, sharded: list[bool]) -> None:
        """Copy the layout of the groups, and the addresses of their tables, to the device."""
        from .kernels.pointers import addresses_of

        numbers = [self._widths, self.block_sizes, self._enabled, sharded]
        placed = torch.tensor(numbers, dtype=torch.int32, device=self.device)
        self._layout = placed.reshape(4, self.num_kv_cache_groups).unbind()
        self._table_ptrs = addresses_of(self._tables, self.device)
        self._input_ptrs = addresses_of(self.input_block_tables, self.device)

    def append_block_ids(
        self, req_index: int, new_block_ids: tuple[list[int], ...], overwrite: bool
    ) -> None:
        """Stage block ids of a request slot, one list for each group.

        They follow the ids that the row has, or replace them with `overwrite`. A row that
        would be longer than its columns is a RuntimeError, and no group's row changes.
        """
        if _checked:
            check_appended(
                self.max_num_reqs, self.num_kv_cache_groups, req_index, new_block_ids, overwrite
            )
        ends, widths = self._ends, self._widths
        for group, block_ids in enumerate(new_block_ids):
            end = len(block_ids) if overwrite else ends[group][req_index] + len(block_ids)
            if end > widths[group]:
                check_room(group, req_index, end, widths[group])
        for group, block_ids in enumerate(new_block_ids):
            row, start = (group, req_index), ends[group][req_index]
            staged = self._staged.get(row)
            if overwrite:
                start = 0
                self._staged[row] = (0, list(block_ids))
            elif staged is not None:
                staged[1].extend(block_ids)
            elif block_ids:
                self._staged[row] = (start, list(block_ids))
            ends[group][req_index] = start + len(block_ids)

    def apply_staged_writes(self) -> None:
        """Make the staged block ids those of the tables."""
        staged, self._staged = self._staged, {}
        if self._on_device:
            if staged:
                self._write_on_device(staged)
            return
        for (group, slot), (start, ids) in staged.items():
            end = start + len(ids)
            self._arrays[group][slot, start:end] = ids
            self._counts[group, slot] = end

    def _write_on_device(self, staged: dict[tuple[int, int], tuple[int, list[int]]]) -> None:
        from .kernels.staged_writes import FIELDS, write_staged

        place, writes = FIELDS * len(staged), []
        for (group, slot), (start, ids) in staged.items():
            writes += [group, slot, start, start + len(ids), place]
            place += len(ids)
        packed = staging(place, torch.int32, self.device)
        packed.numpy()[:] = [*writes, *chain.from_iterable(ids for _, ids in staged.values())]
        sent = upload(packed, self.device)
        write_staged(sent, len(staged), self._table_ptrs, self._layout[0], self._num_blocks)

    def gather_block_tables(
        self,
        idx_mapping: torch.Tensor,
        num_reqs_padded: int,
        out: tuple[torch.Tensor, ...] | None = None,
        out_ptrs: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Return each group's block table of a step, (num_reqs_padded, W_g) int32.

        Live blocks of each row's slot, then 0; dummy and padded rows are 0. Arguments and
        errors as in `reference`. On a device `out` without `out_ptrs` costs one more copy.
        """
        tables = self.input_block_tables if out is None else out
        if _checked:
            check_gather(
                self._widths,
                self.device,
                self.max_num_reqs,
                idx_mapping,
                num_reqs_padded,
                tables,
                out_ptrs,
            )
        if self._on_device:
            from .kernels.gather_block_tables import gather_on_device
            from .kernels.pointers import addresses_of

            if out is None:
                out_ptrs = self._input_ptrs
            elif out_ptrs is None:
                out_ptrs = addresses_of(list(out), self.device)
            gather_on_device(
                idx_mapping,
                self._table_ptrs,
                out_ptrs,
                self._layout[0],
                self._num_blocks,
                num_reqs_padded,
                max(self._widths, default=0),
            )
        else:
            wide, rows = idx_mapping.dtype is _INT64, idx_mapping.shape[0]
            for group, table in enumerate(tables):
                loops.gather_rows(
                    self._tables[group].data_ptr(),
                    self._widths[group],
                    self._num_blocks[group].data_ptr(),
                    idx_mapping.data_ptr(),
                    wide,
                    rows,
                    num_reqs_padded,
                    table.data_ptr(),
                )
        return tuple([table[:num_reqs_padded] for table in tables])

    def get_dummy_block_tables(self, num_reqs: int) -> tuple[torch.Tensor, ...]:
        """Return the first rows of `input_block_tables`, set to 0."""
        if _checked:
            check_dummy_size("get_dummy_block_tables", "num_reqs", num_reqs, self.max_num_reqs)
        return tuple([table[:num_reqs].zero_() for table in self.input_block_tables])

    def compute_slot_mappings(
        self,
        idx_mapping: torch.Tensor,
        query_start_loc: torch.Tensor,
        positions: torch.Tensor,
        num_tokens_padded: int,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the cache slot of each token in each group, (G, num_tokens_padded) int64.

        -1 from the last token to the end of the whole buffer. Arguments and errors as in
        `reference`.
        """
        slots = self.slot_mappings if out is None else out
        if _checked:
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
        if self._on_device:
            from .kernels.group_slots import write_group_slots

            write_group_slots(
                idx_mapping,
                query_start_loc,
                positions,
                self._table_ptrs,
                self._layout,
                self._num_blocks,
                (self.cp_size, self.cp_rank, self.cp_interleave),
                slots,
            )
        else:
            self._fill_by_loops(idx_mapping, query_start_loc, positions, slots)
        return slots[:, :num_tokens_padded]

    def _fill_by_loops(
        self,
        idx_mapping: torch.Tensor,
        query_start_loc: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
    ) -> None:
        rows, wide = idx_mapping.shape[0], idx_mapping.dtype is _INT64
        first, group_bytes = slots.data_ptr(), 8 * slots.stride(0)
        for group, enabled in enumerate(self._enabled):
            loops.fill_group(
                rows if enabled else 0,
                idx_mapping.data_ptr(),
                wide,
                query_start_loc.data_ptr(),
                positions.data_ptr(),
                self._tables[group].data_ptr(),
                self._widths[group],
                self._num_blocks[group].data_ptr(),
                self.block_sizes[group],
                self._ranks[group],
                self.cp_rank,
                self.cp_interleave,
                first + group * group_bytes,
                slots.shape[1],
            )

    def get_dummy_slot_mappings(self, num_tokens: int) -> torch.Tensor:
        """Return the first columns of `slot_mappings`, after -1 was written to all of it."""
        if _checked:
            most = self.max_num_batched_tokens
            check_dummy_size("get_dummy_slot_mappings", "num_tokens", num_tokens, most)
        self.slot_mappings.fill_(PAD_SLOT_ID)
        return self.slot_mappings[:, :num_tokens]
