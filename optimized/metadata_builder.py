"""Build first-generation (V0) metadata of an engine step (SPEC.md section 7)."""

from __future__ import annotations

import array
from collections.abc import Sequence
from copy import deepcopy
from itertools import accumulate, chain
from operator import index
from typing import Any, Final, Generic, TypeVar

import numpy as np
import torch

from attnproof.reference.checks.v0 import (
    BUILD,
    check_build,
    check_graph,
    check_input_builder,
    check_seq_group,
)
from attnproof.reference.interface import PAD_SLOT_ID, MetadataError
from attnproof.reference.interface.protocols_v0 import InputBuilder, InterData, PlaceholderMap
from attnproof.reference.shared import AttentionMetadataBuilderV0

from .checking import checks
from .host.arrays import Array
from .host.metadata_builder import fill_rectangle
from .packed import Packed
from .sequence_slots import (
    compute_slot_mapping,
    compute_slot_mapping_start_idx,
    is_block_tables_empty,
)

__all__ = [
    "CommonMetadataBuilder",
]

_checked = checks.follow(globals())

M = TypeVar("M")
_INT: Final = {int}  # made once: `_add_decode` runs for each decode


class CommonMetadataBuilder(AttentionMetadataBuilderV0[M], Generic[M]):
    """Builder of V0 metadata, reused for each batch: call `prepare`, then `build`.

    A subclass names its metadata class in `_metadata_cls`; without it the runner's
    backend makes the metadata. All int32 tensors of a batch are parts of one upload.
    Errors as in `reference`. SPEC.md section 7.
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
        self.block_tables: list[Sequence[int]] = []
        self.curr_seq_lens: list[int] = []
        self.multimodal_placeholder_maps: dict[str, PlaceholderMap] = {}
        self.num_prefills = 0
        self.num_prefill_tokens = 0
        self.num_decode_tokens = 0

    def _add_seq_group(self, inter_data: InterData, chunked_prefill_enabled: bool) -> None:
        """Add the sequences of one group to the batch.

        Errors are those of `reference` and leave the batch unchanged. SPEC.md section 7.
        """
        if _checked:
            if self._add_decode(inter_data):
                return
            check_seq_group(inter_data)
        elif self._add_trusted_decode(inter_data):
            return
        tables, rows = inter_data.block_tables, range(len(inter_data.seq_ids))
        is_profile_run = is_block_tables_empty(tables)
        slots: list[int] = []
        for row in rows:
            self._add_slots(slots, inter_data, row, is_profile_run)
        if is_profile_run or (
            inter_data.is_prompt and not chunked_prefill_enabled and not inter_data.prefix_cache_hit
        ):
            self.block_tables += [() for _ in rows]
        else:
            self.block_tables += _block_tables(inter_data)
        self.slot_mapping += slots
        self.context_lens += inter_data.context_lens
        if inter_data.is_prompt:
            self.num_prefills += len(rows)
            self.num_prefill_tokens += sum(inter_data.query_lens)
            self.prefill_seq_lens += inter_data.orig_seq_lens
            self._add_placeholder_maps(inter_data)
        else:
            self.num_decode_tokens += len(rows)
            self.curr_seq_lens += inter_data.seq_lens

    def _add_decode(self, group: InterData) -> bool:
        """Add a group of one well-formed decode; return False for any other group.

        Most groups are one decode; `_add_seq_group` handles and checks all others.
        """
        tables: Any = group.block_tables
        if group.is_prompt is not False or len(group.seq_ids) != 1 or type(tables) is not dict:
            return False
        try:
            ((tokens,), (end,), (seq_len,), (query_len,), (context_len,), (last,)) = (
                group.input_tokens,
                group.orig_seq_lens,
                group.seq_lens,
                group.query_lens,
                group.context_lens,
                group.curr_sliding_window_blocks,
            )
            blocks = tables[group.seq_ids[0]]
            column, offset = divmod(context_len, self.block_size)
            block = blocks[column]
        except (TypeError, ValueError, LookupError, ZeroDivisionError):
            return False  # malformed: `_add_seq_group` raises the error
        kinds = {type(end), type(seq_len), type(query_len), type(context_len), type(last)}
        if not (kinds == _INT and type(block) is int and len(tokens) == query_len == 1):
            return False
        if min(seq_len, context_len, last, block) < 0 or end != context_len + 1:
            return False
        self.slot_mapping.append(block * self.block_size + offset)
        hit = group.prefix_cache_hit
        self.block_tables.append(list(blocks if hit or not last else blocks[-last:]))
        self.context_lens.append(context_len)
        self.curr_seq_lens.append(seq_len)
        self.num_decode_tokens += 1
        return True

    def _add_trusted_decode(self, group: InterData) -> bool:
        """Add a group of one decode without a look at its values; return False for any other."""
        tables: Any = group.block_tables
        if group.is_prompt or len(group.seq_ids) != 1 or tables is None:
            return False
        blocks = tables[group.seq_ids[0]]
        if blocks is None:  # a profile run
            return False
        context_len, last = group.context_lens[0], group.curr_sliding_window_blocks[0]
        block_size = self.block_size
        block = index(blocks[context_len // block_size])
        self.slot_mapping.append(block * block_size + context_len % block_size)
        windowed = last and not group.prefix_cache_hit
        self.block_tables.append(list(blocks[-last:] if windowed else blocks))
        self.context_lens.append(context_len)
        self.curr_seq_lens.append(group.seq_lens[0])
        self.num_decode_tokens += 1
        return True

    def _add_slots(
        self, slots: list[int], group: InterData, row: int, is_profile_run: bool
    ) -> None:
        """Append the slots of one sequence's query tokens (SPEC.md section 5)."""
        query_len, context_len = group.query_lens[row], group.context_lens[row]
        tables: Any = group.block_tables
        start_idx = compute_slot_mapping_start_idx(
            group.is_prompt, query_len, context_len, self.sliding_window
        )
        compute_slot_mapping(
            is_profile_run,
            slots,
            group.seq_ids[row],
            group.orig_seq_lens[row],
            context_len,
            start_idx,
            self.block_size,
            tables,
        )

    def _add_placeholder_maps(self, inter_data: InterData) -> None:
        maps = inter_data.multi_modal_placeholder_maps
        if not maps:
            return
        merged = self.multimodal_placeholder_maps
        for _ in inter_data.seq_ids:
            for modality, placeholders in maps.items():
                if modality not in merged:
                    merged[modality] = type(placeholders)()
                merged[modality].extend(placeholders)

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
        padded rows, -1 without a graph; `batch_size` includes padded rows. Errors are
        those of `reference` and leave the batch unchanged. No synchronisation. SPEC.md
        section 7.
        """
        arguments = seq_lens, query_lens, cuda_graph_pad_size, batch_size
        if not _checked:
            return self._added_and_built(*arguments)
        before = self._batch()
        try:
            return self._added_and_built(*arguments)
        except Exception:
            vars(self).update(before)
            raise

    def _added_and_built(
        self, seq_lens: list[int], query_lens: list[int], pad_size: int, batch_size: int
    ) -> M:
        chunked = self.input_builder.chunked_prefill_enabled
        for inter_data in self.input_builder.inter_data_list:
            self._add_seq_group(inter_data, chunked)
        return self._build(seq_lens, query_lens, pad_size, batch_size)

    def _batch(self) -> dict[str, Any]:
        """Return a copy of the batch, which is empty unless groups were added before `build`."""
        lists = ("slot_mapping", "prefill_seq_lens", "context_lens", "block_tables")
        counts = ("num_prefills", "num_prefill_tokens", "num_decode_tokens")
        batch = {name: getattr(self, name).copy() for name in (*lists, "curr_seq_lens")}
        batch |= {name: getattr(self, name) for name in counts}
        batch["multimodal_placeholder_maps"] = deepcopy(self.multimodal_placeholder_maps)
        return batch

    def _build(
        self, seq_lens: list[int], query_lens: list[int], pad_size: int, batch_size: int
    ) -> M:
        if _checked:
            tokens = self.num_prefill_tokens + self.num_decode_tokens
            check_build(seq_lens, query_lens, pad_size, batch_size, len(self.context_lens), tokens)
        in_graph = pad_size != -1
        table_lengths = [*map(len, self.block_tables)]
        rows, width = len(table_lengths), max(table_lengths)
        if in_graph:
            if _checked:
                check_graph(self.runner, self.num_prefills, len(seq_lens), batch_size, width)
            rows, width = batch_size, self.runner.graph_block_tables.shape[1]
        int32 = self._packed(seq_lens, query_lens, table_lengths, rows, width)
        return self._make_metadata(
            {
                "num_prefills": self.num_prefills,
                "slot_mapping": self._slots(max(0, pad_size)),
                "multi_modal_placeholder_index_maps": {
                    modality: placeholders.index_map()
                    for modality, placeholders in self.multimodal_placeholder_maps.items()
                },
                "enable_kv_scales_calculation": True,
                "num_prefill_tokens": self.num_prefill_tokens,
                "num_decode_tokens": batch_size if in_graph else self.num_decode_tokens,
                "seq_lens": seq_lens.copy(),
                "seq_lens_tensor": int32[0],
                "max_query_len": max(query_lens),
                "max_prefill_seq_len": max(self.prefill_seq_lens, default=0),
                "max_decode_seq_len": max(self.curr_seq_lens, default=0),
                "query_start_loc": int32[1],
                "seq_start_loc": int32[2],
                "context_lens_tensor": int32[3],
                "block_tables": int32[4].view(rows, width),
                "use_cuda_graph": in_graph,
            }
        )

    def _packed(
        self,
        seq_lens: list[int],
        query_lens: list[int],
        table_lengths: list[int],
        rows: int,
        width: int,
    ) -> list[torch.Tensor]:
        """Upload sequence lengths, both offsets, context lengths, flat block tables in one copy."""
        offsets = [len(query_lens) + 1, len(seq_lens) + 1]
        lengths = [len(seq_lens), *offsets, len(self.context_lens), rows * width]
        packed = Packed(lengths, pinned=self._pinned)
        arrays = packed.arrays
        arrays[0][:] = seq_lens
        _running_sum(query_lens, arrays[1])
        _running_sum(seq_lens, arrays[2])
        arrays[3][:] = self.context_lens
        blocks = _flat(self.block_tables)
        fill_rectangle(blocks, np.array(table_lengths), width, arrays[4])
        return packed.on(self.runner.device)

    def _slots(self, pad_size: int) -> torch.Tensor:
        """Return the slots, followed by `pad_size` times -1."""
        count = len(self.slot_mapping)
        staged = torch.empty(count + pad_size, dtype=torch.int64, pin_memory=self._pinned)
        slots = staged.numpy()
        slots[:count] = self.slot_mapping
        slots[count:] = PAD_SLOT_ID
        return staged.to(self.runner.device, non_blocking=True)

    @property
    def _pinned(self) -> bool:
        """True if uploads use pinned memory: for a CUDA device, if the host has such memory."""
        on_cuda = torch.device(self.runner.device).type == "cuda"
        return on_cuda and bool(self.runner.pin_memory)

    def _make_metadata(self, fields: dict[str, Any]) -> M:
        if hasattr(type(self), "_metadata_cls"):
            return self._metadata_cls(**fields)
        metadata: M = self.runner.attn_backend.make_metadata(**fields)
        return metadata


def _block_tables(group: InterData) -> list[Sequence[int]]:
    """Return copies of the blocks of each sequence, the last ones only for a windowed decode."""
    tables: Any = group.block_tables
    if group.prefix_cache_hit or not any(group.curr_sliding_window_blocks):
        return [list(tables[seq_id]) for seq_id in group.seq_ids]
    # 0 stands for all blocks, and blocks[-0:] is the whole list.
    lasts = zip(group.seq_ids, group.curr_sliding_window_blocks, strict=True)
    return [list(tables[seq_id][-last:]) for seq_id, last in lasts]


def _flat(tables: list[Sequence[int]]) -> Array:
    """Return all block ids, concatenated (MetadataError for negative ids and those above int32)."""
    try:
        ids = array.array("i", list(chain.from_iterable(tables)))  # twice as fast as `extend`
    except OverflowError as error:
        raise MetadataError(BUILD, "block_tables", str(error), "ids below 2**31") from None
    except TypeError as error:
        raise TypeError(f"{BUILD}: block_tables is not a list of ints: {error}") from None
    blocks: Array = np.frombuffer(ids, dtype=np.int32) if ids else np.zeros(0, dtype=np.int32)
    if _checked and len(blocks) and blocks.min() < 0:
        raise MetadataError(BUILD, "block_tables", int(blocks.min()), "at least 0")
    return blocks


def _running_sum(lengths: list[int], out: Array) -> None:
    """Write the running sum of the lengths to `out`, after a leading 0."""
    out[:] = list(accumulate(lengths, initial=0))  # np.cumsum takes 5 us more for a few
