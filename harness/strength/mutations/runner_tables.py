"""Mistakes that shipped in the block tables of model runner V2 (SPEC.md section 13)."""

from __future__ import annotations

from typing import Any

import torch

from attnproof.harness.strength.mutation import mutation

_TABLES = "BlockTables"


def _clones(tensors: Any) -> list[torch.Tensor]:
    """Return copies of the tensors; what is none is left out, and refused by the right method."""
    return [one.clone() for one in tensors or () if isinstance(one, torch.Tensor)]


@mutation(
    _TABLES,
    "K29",
    source="vllm-project/vllm#36580",
    diagnoses=("a slot for an entry that must have none",),
    both=("consumer",),
)
def slots_padded_from_the_padded_tokens(tables: Any) -> Any:
    """Entries between the last token and the padded tokens keep an earlier chunk's slots."""

    class BlockTables(tables):
        def compute_slot_mappings(
            self,
            idx_mapping: Any,
            query_start_loc: Any,
            positions: Any,
            num_tokens_padded: int,
            out: Any = None,
        ) -> Any:
            before = _clones([self.slot_mappings if out is None else out])
            given = idx_mapping, query_start_loc, positions, num_tokens_padded, out
            slots = super().compute_slot_mappings(*given)
            first = int(query_start_loc[len(idx_mapping)])
            slots[:, first:] = before[0][:, first : slots.shape[1]]
            return slots

    return BlockTables


@mutation(
    _TABLES,
    "K31",
    source="vllm-project/vllm#57260",
    diagnoses=("a replicated group taken for a sharded one",),
    both=("consumer",),
)
def replicated_group_is_sharded(tables: Any) -> Any:
    """Groups whose state every rank holds get the slots of a group that ranks share."""

    class BlockTables(tables):
        def __init__(
            self,
            sizes: Any,
            reqs: int,
            tokens: int,
            blocks: Any,
            device: Any,
            cp_size: int = 1,
            cp_rank: int = 0,
            cp_interleave: int = 1,
            enabled: Any = None,
            sharded: Any = None,
        ) -> None:
            given = sizes, reqs, tokens, blocks, device, cp_size, cp_rank, cp_interleave, enabled
            super().__init__(*given, sharded)  # refuses malformed input
            super().__init__(*given, [size % cp_interleave == 0 for size in sizes])

    return BlockTables


@mutation(
    _TABLES,
    "K32",
    source="vllm-project/vllm#37728",
    diagnoses=("stale entry read",),
    both=("consumer",),
)
def padded_rows_of_an_earlier_step(tables: Any) -> Any:
    """Rows of graph padding keep the blocks of an earlier step, which may have another owner."""

    class BlockTables(tables):
        def gather_block_tables(
            self, idx_mapping: Any, num_reqs_padded: int, out: Any = None, out_ptrs: Any = None
        ) -> Any:
            before = _clones(self.input_block_tables if out is None else out)
            gathered = super().gather_block_tables(idx_mapping, num_reqs_padded, out, out_ptrs)
            rows = len(idx_mapping)
            for table, earlier in zip(gathered, before, strict=True):
                table[rows:] = earlier[rows : len(table)]
            return gathered

    return BlockTables


@mutation(
    _TABLES,
    "K33",
    source="vllm-project/vllm#49757",
    diagnoses=("a dummy step names blocks",),
    both=("invariants",),
)
def dummy_tables_of_an_earlier_step(tables: Any) -> Any:
    """A dummy step gets the block tables that the last step has gathered."""

    class BlockTables(tables):
        def get_dummy_block_tables(self, num_reqs: int) -> Any:
            before = _clones(self.input_block_tables)
            dummies = super().get_dummy_block_tables(num_reqs)
            for table, earlier in zip(dummies, before, strict=True):
                table.copy_(earlier[: len(table)])
            return dummies

    return BlockTables
