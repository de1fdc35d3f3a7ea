"""Build first-generation (V0) metadata of an engine step (SPEC.md section 7)."""

from __future__ import annotations

from copy import deepcopy
from itertools import accumulate
from typing import Any, Generic, TypeVar

import torch

from .checks.v0 import check_build, check_graph, check_ids, check_input_builder, check_seq_group
from .interface import PAD_SLOT_ID
from .interface.protocols_v0 import InputBuilder, InterData, PlaceholderMap
from .shared import (
    AttentionMetadataBuilderV0,
    compute_slot_mapping_start_idx,
    is_block_tables_empty,
)
from .slot_mapping import compute_slot_mapping

__all__ = [
    "CommonMetadataBuilder",
]

M = TypeVar("M")
_BATCH_FIELDS = (
    "slot_mapping",
    "prefill_seq_lens",
    "context_lens",
    "block_tables",
    "curr_seq_lens",
    "multimodal_placeholder_maps",
    "num_prefills",
    "num_prefill_tokens",
    "num_decode_tokens",
)


class CommonMetadataBuilder(AttentionMetadataBuilderV0[M], Generic[M]):
    """Builder of V0 metadata, reused for each batch: call `prepare`, then `build`.

    A subclass names its metadata class in `_metadata_cls`; without it the runner's
    backend makes the metadata. Raise MetadataError for a block size or window below 1
    token. SPEC.md section 7.
    """

    _metadata_cls: type[M]

    def __init__(self, input_builder: InputBuilder) -> None:
        check_input_builder(input_builder)
        self.input_builder = input_builder
        self.runner = input_builder.runner
        self.sliding_window = input_builder.sliding_window
        self.block_size = input_builder.block_size
        self.prepare()

    def prepare(self) -> None:
        """Discard the previous batch; metadata already built from it does not change."""
        self.slot_mapping: list[int] = []
        self.prefill_seq_lens: list[int] = []
        self.context_lens: list[int] = []
        self.block_tables: list[list[int]] = []
        self.curr_seq_lens: list[int] = []
        self.multimodal_placeholder_maps: dict[str, PlaceholderMap] = {}
        self.num_prefills = 0
        self.num_prefill_tokens = 0
        self.num_decode_tokens = 0

    def _add_seq_group(self, inter_data: InterData, chunked_prefill_enabled: bool) -> None:
        """Add the sequences of one group to the batch.

        Raise MetadataError, with the batch unchanged, for lists of different lengths,
        lengths that contradict each other, a decode of more than one token, a position
        beyond its block table. SPEC.md section 7.
        """
        check_seq_group(inter_data)
        slot_mapping: list[int] = []
        block_tables = []
        for row in range(len(inter_data.seq_ids)):
            block_tables.append(self._block_table(inter_data, row, chunked_prefill_enabled))
            self._add_slots(slot_mapping, inter_data, row)

        if inter_data.is_prompt:
            self._add_placeholder_maps(inter_data)
        for row in range(len(inter_data.seq_ids)):
            if inter_data.is_prompt:
                self.num_prefills += 1
                self.num_prefill_tokens += len(inter_data.input_tokens[row])
                self.prefill_seq_lens.append(inter_data.orig_seq_lens[row])
            else:
                self.num_decode_tokens += inter_data.query_lens[row]
                self.curr_seq_lens.append(inter_data.seq_lens[row])
            self.context_lens.append(inter_data.context_lens[row])
        self.block_tables.extend(block_tables)
        self.slot_mapping.extend(slot_mapping)

    def _block_table(self, inter_data: InterData, row: int, chunked: bool) -> list[int]:
        """Return the blocks that attention reads: none for a prompt computed in one step."""
        if inter_data.block_tables is None or is_block_tables_empty(inter_data.block_tables):
            return []
        blocks = inter_data.block_tables[inter_data.seq_ids[row]]
        if blocks is None:
            return []
        if inter_data.prefix_cache_hit:
            return list(blocks)
        if inter_data.is_prompt and not chunked:
            return []
        last = inter_data.curr_sliding_window_blocks[row]
        if last == 0:
            return list(blocks)
        return list(blocks[-last:])

    def _add_slots(self, slot_mapping: list[int], inter_data: InterData, row: int) -> None:
        """Append the slots of one sequence's query tokens (SPEC.md section 5)."""
        start_idx = compute_slot_mapping_start_idx(
            inter_data.is_prompt,
            inter_data.query_lens[row],
            inter_data.context_lens[row],
            self.sliding_window,
        )
        compute_slot_mapping(
            is_block_tables_empty(inter_data.block_tables),
            slot_mapping,
            inter_data.seq_ids[row],
            inter_data.orig_seq_lens[row],
            inter_data.context_lens[row],
            start_idx,
            self.block_size,
            inter_data.block_tables,  # type: ignore[arg-type]  # no sequence without a table
        )

    def _add_placeholder_maps(self, inter_data: InterData) -> None:
        """Append the maps of the prompt by modality, once for each of its sequences."""
        for _ in inter_data.seq_ids:
            for modality, placeholders in (inter_data.multi_modal_placeholder_maps or {}).items():
                if modality not in self.multimodal_placeholder_maps:
                    self.multimodal_placeholder_maps[modality] = type(placeholders)()
                self.multimodal_placeholder_maps[modality].extend(placeholders)

    def build(
        self,
        seq_lens: list[int],
        query_lens: list[int],
        cuda_graph_pad_size: int,
        batch_size: int,
    ) -> M:
        """Build metadata of the input builder's sequence groups, on the runner's device.

        `seq_lens` and `query_lens` are in tokens, one entry a sequence; in a graph
        `seq_lens` has one entry a padded row too. `cuda_graph_pad_size` is the number of
        padded rows, -1 without a graph; `batch_size` includes padded rows. Raise
        MetadataError, with the batch unchanged, for lengths of another batch, a batch
        without tokens, and a batch that no graph can hold. SPEC.md section 7.
        """
        before = {name: deepcopy(getattr(self, name)) for name in _BATCH_FIELDS}
        try:
            for inter_data in self.input_builder.inter_data_list:
                self._add_seq_group(inter_data, self.input_builder.chunked_prefill_enabled)
            return self._build(seq_lens, query_lens, cuda_graph_pad_size, batch_size)
        except Exception:
            vars(self).update(before)
            raise

    def _build(
        self, seq_lens: list[int], query_lens: list[int], pad_size: int, batch_size: int
    ) -> M:
        tokens = self.num_prefill_tokens + self.num_decode_tokens
        check_build(seq_lens, query_lens, pad_size, batch_size, len(self.context_lens), tokens)
        check_ids(self.block_tables)
        in_graph = pad_size != -1
        most_blocks = max([len(table) for table in self.block_tables])
        slot_mapping, rows, width = list(self.slot_mapping), len(self.block_tables), most_blocks
        if in_graph:
            check_graph(self.runner, self.num_prefills, len(seq_lens), batch_size, most_blocks)
            slot_mapping += [PAD_SLOT_ID] * pad_size
            rows, width = batch_size, self.runner.graph_block_tables.shape[1]
        fields = {
            "num_prefills": self.num_prefills,
            "slot_mapping": self._tensor(slot_mapping, torch.int64),
            "multi_modal_placeholder_index_maps": {
                modality: placeholders.index_map()
                for modality, placeholders in self.multimodal_placeholder_maps.items()
            },
            "enable_kv_scales_calculation": True,
            "num_prefill_tokens": self.num_prefill_tokens,
            "num_decode_tokens": batch_size if in_graph else self.num_decode_tokens,
            "seq_lens": list(seq_lens),
            "seq_lens_tensor": self._tensor(seq_lens),
            "max_query_len": max(query_lens),
            "max_prefill_seq_len": max(self.prefill_seq_lens, default=0),
            "max_decode_seq_len": max(self.curr_seq_lens, default=0),
            "query_start_loc": self._tensor(list(accumulate(query_lens, initial=0))),
            "seq_start_loc": self._tensor(list(accumulate(seq_lens, initial=0))),
            "context_lens_tensor": self._tensor(self.context_lens),
            "block_tables": self._tensor(self._rectangle(rows, width)).reshape(rows, width),
            "use_cuda_graph": in_graph,
        }
        return self._make_metadata(fields)

    def _rectangle(self, rows: int, width: int) -> list[list[int]]:
        """Return the block tables as rows of one width, filled up with 0."""
        rectangle = [[0] * width for _ in range(rows)]
        for row, table in enumerate(self.block_tables):
            for column, block in enumerate(table):
                rectangle[row][column] = block
        return rectangle

    def _tensor(self, values: list[Any], dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=self.runner.device)

    def _make_metadata(self, fields: dict[str, Any]) -> M:
        if hasattr(type(self), "_metadata_cls"):
            return self._metadata_cls(**fields)
        metadata: M = self.runner.attn_backend.make_metadata(**fields)
        return metadata
