"""XFormers attention backend on the CPU, without xformers (SPEC.md section 8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from attnproof.reference.batch_split import (
    reorder_batch_to_split_decodes_and_prefills,
    split_decodes_and_prefills,
)
from attnproof.reference.cache_write import reshape_and_cache_flash
from attnproof.reference.checks.common import check_int
from attnproof.reference.checks.xformers import BUILDER, check_build, check_forward, check_output
from attnproof.reference.interface import (
    AttentionLayer,
    InputBatch,
    KVCacheSpec,
    SchedulerOutput,
    VllmConfig,
)
from attnproof.reference.kv_cache import copy_blocks, swap_blocks
from attnproof.reference.paged_attention import paged_attention
from attnproof.reference.shared import (
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
    XFormersAttentionMetadata,
)
from attnproof.reference.shared.xformers import XFormersBackend, XFormersImpl

__all__ = [
    "XFormersAttentionBackend",
    "XFormersAttentionImpl",
    "XFormersAttentionMetadataBuilder",
]

_INT32_MAX = 2**31 - 1
"""Largest offset of an xformers mask, which holds offsets in 32 bits."""


@dataclass
class QueryLengths:
    """Query lengths of the masked rows, in tokens, with the fields of xformers' `_SeqLenInfo`."""

    seqstart: torch.Tensor
    """(R + 1,) int32 offsets."""
    seqstart_py: list[int]
    max_seqlen: int
    min_seqlen: int


@dataclass
class KeyLengths(QueryLengths):
    """Key lengths of the masked rows, in tokens, each row padded to its whole block table."""

    seqlen: torch.Tensor
    """(R,) int32 lengths."""
    seqlen_py: list[int]
    padding: int
    """Keys from the start of one row to the start of the next: table columns * block size."""


@dataclass
class DecodeMask:
    """Content of xformers' paged causal mask; the specification does not need xformers."""

    q_seqinfo: QueryLengths
    k_seqinfo: KeyLengths
    block_tables: torch.Tensor
    page_size: int


class XFormersAttentionMetadataBuilder(AttentionMetadataBuilder[XFormersAttentionMetadata]):
    """Builder that splits a batch into decodes and prefills and masks the decodes."""

    reorder_batch_threshold: ClassVar[int | None] = 1  # type: ignore[misc]

    def __init__(
        self,
        kv_cache_spec: KVCacheSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        check_int(BUILDER, "block_size", kv_cache_spec.block_size, 1)
        self.block_size = kv_cache_spec.block_size

    def reorder_batch(self, input_batch: InputBatch, scheduler_output: SchedulerOutput) -> bool:
        """Move decodes to the front (SPEC.md section 2); return True if a row moved."""
        return reorder_batch_to_split_decodes_and_prefills(input_batch, scheduler_output, 1)

    def build(
        self,
        common_prefix_len: int,  # noqa: ARG002  # there is no cascade attention
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,  # noqa: ARG002  # building is fast
    ) -> XFormersAttentionMetadata:
        """Return the batch with its split and the mask of the rows before the split."""
        md = common_attn_metadata
        decodes, prefills, decode_tokens, prefill_tokens = split_decodes_and_prefills(md, 1)
        check_build(md, self.block_size)
        return XFormersAttentionMetadata(
            num_actual_tokens=md.num_actual_tokens,
            max_query_len=md.max_query_len,
            query_start_loc=md.query_start_loc,
            max_seq_len=md.max_seq_len,
            seq_lens=md.seq_lens,
            block_table=md.block_table_tensor,
            slot_mapping=md.slot_mapping,
            num_prefill_tokens=prefill_tokens,
            num_decode_tokens=decode_tokens,
            num_prefills=prefills,
            num_decodes=decodes,
            attn_bias=self._mask(md, decodes) if decodes else None,
        )

    def _mask(self, md: CommonAttentionMetadata, rows: int) -> DecodeMask | None:
        starts = md.query_start_loc_cpu[: rows + 1].tolist()
        query_lens = [starts[r + 1] - starts[r] for r in range(rows)]
        seq_lens = md.seq_lens_cpu[:rows].tolist()
        room = md.block_table_tensor.shape[1] * self.block_size
        rooms = [row * room for row in range(rows + 1)]
        if rooms[-1] > _INT32_MAX:
            return None
        device = md.seq_lens.device

        def int32(values: list[int]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device)

        return DecodeMask(
            QueryLengths(int32(starts), starts, max(query_lens), min(query_lens)),
            KeyLengths(
                int32(rooms), rooms, max(seq_lens), min(seq_lens), int32(seq_lens), seq_lens, room
            ),
            md.block_table_tensor[:rows],
            self.block_size,
        )


class XFormersAttentionImpl(XFormersImpl):
    """Attention of one layer in float64, for prefills and decodes alike."""

    def forward(
        self,
        layer: AttentionLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: XFormersAttentionMetadata | None,
        output: torch.Tensor | None = None,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write the new keys and values to the cache, then attend to it.

        `query` (T, Hq, D), `key`, `value` (T, Hkv, D), `kv_cache` (2, num_blocks, B,
        Hkv, D), `output` (T, Hq, D) or (T, Hq * D), which is returned. The output of
        tokens outside every row is not written; without metadata none is. Errors
        (MetadataError, NotImplementedError) are those of SPEC.md section 8.
        """
        check_output(output, output_scale, output_block_scale)
        assert output is not None
        if attn_metadata is None:
            return output
        md = attn_metadata
        check_forward(self, layer, query, key, value, kv_cache, md, output)
        key_cache, value_cache = kv_cache[0], kv_cache[1]
        reshape_and_cache_flash(
            key,
            value,
            key_cache,
            value_cache,
            md.slot_mapping[: md.num_actual_tokens],
            self.kv_cache_dtype,
            layer._k_scale,
            layer._v_scale,
        )
        # Decodes and prefills as one batch: the result of a row does not depend on the split.
        paged_attention(
            query,
            key_cache,
            value_cache,
            md.query_start_loc,
            md.seq_lens,
            md.block_table,
            self.scale,
            max_query_len=md.max_query_len,
            max_seq_len=md.max_seq_len,
            sliding_window=self.window,
            logits_soft_cap=self.logits_soft_cap,
            k_scale=layer._k_scale,
            v_scale=layer._v_scale,
            out=output.view(query.shape),
        )
        return output


class XFormersAttentionBackend(XFormersBackend):
    """Classes and cache operations of the XFormers backend."""

    @staticmethod
    def get_impl_cls() -> type[XFormersAttentionImpl]:
        """Return the class that runs attention."""
        return XFormersAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[Any]:
        """Return the class that builds the metadata."""
        return XFormersAttentionMetadataBuilder

    swap_blocks = staticmethod(swap_blocks)
    copy_blocks = staticmethod(copy_blocks)
