"""XFormers backend: metadata and attention of an engine step (SPEC.md section 8)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from attnproof.reference.checks.common import check_int
from attnproof.reference.checks.xformers import BUILDER, check_build, check_forward, check_output
from attnproof.reference.interface import (
    AttentionLayer,
    InputBatch,
    KVCacheSpec,
    SchedulerOutput,
    VllmConfig,
)
from attnproof.reference.shared import (
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
    XFormersAttentionMetadata,
)
from attnproof.reference.shared.xformers import XFormersBackend, XFormersImpl

from .batch_split import reorder_batch_to_split_decodes_and_prefills, split_decodes_and_prefills
from .cache_write import reshape_and_cache_flash
from .graph_state import CommonAttentionState
from .host import lengths as loops
from .host.lengths import dense_lengths
from .host.paged_attention import Attention
from .host.shapes import lengths_dtype
from .kv_cache import copy_blocks, swap_blocks
from .paged_attention import attend, attend_decodes
from .xformers_mask import decode_mask

__all__ = [
    "XFormersAttentionBackend",
    "XFormersAttentionImpl",
    "XFormersAttentionMetadataBuilder",
]


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
        """Return the batch with its split and xformers' mask of the rows before the split.

        Only CPU mirrors are read. Errors as in `reference`. SPEC.md section 8.
        """
        md = common_attn_metadata
        decodes, prefills, decode_tokens, prefill_tokens = split_decodes_and_prefills(md, 1)
        if not _lengths_fit(md, self.block_size):
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
            attn_bias=decode_mask(md, decodes, self.block_size) if decodes else None,
        )


def _lengths_fit(md: CommonAttentionMetadata, block_size: int) -> bool:
    """True if `check_build` would certainly pass."""
    dtype = lengths_dtype(md)
    offsets, seq_lens, computed = dense_lengths(md, dtype)
    # Sequences must fit both the given bound and the block table.
    most = min(md.max_seq_len, md.block_table_tensor.shape[1] * block_size)
    return loops.lengths_fit_at(
        dtype is torch.int64,
        offsets.data_ptr(),
        seq_lens.data_ptr(),
        computed.data_ptr(),
        md.num_reqs,
        md.num_actual_tokens,
        md.max_query_len,
        most,
    )


class XFormersAttentionImpl(XFormersImpl):
    """Attention of one layer: xformers for decodes that it supports, else the paged kernel."""

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
        """Write the new keys and values to the cache, then attend: prefills, then decodes.

        `query` (T, Hq, D), `key`, `value` (T, Hkv, D), `kv_cache` (2, num_blocks, B,
        Hkv, D), `output` (T, Hq, D) or (T, Hq * D), which is returned. The output of
        tokens outside every row is not written; without metadata none is. Errors as in
        `reference`. On a device: no sync. SPEC.md section 8.
        """
        check_output(output, output_scale, output_block_scale)
        assert output is not None
        if attn_metadata is None:
            return output
        md = attn_metadata
        check_forward(self, layer, query, key, value, kv_cache, md, output)
        key_cache, value_cache = kv_cache.unbind()
        k_scale, v_scale = layer._k_scale, layer._v_scale
        slots = md.slot_mapping
        if slots.shape[0] != md.num_actual_tokens:
            slots = slots[: md.num_actual_tokens]
        reshape_and_cache_flash(
            key, value, key_cache, value_cache, slots, self.kv_cache_dtype, k_scale, v_scale
        )
        caches, scales = (key_cache, value_cache), (k_scale, v_scale)
        attended = output if output.ndim == 3 else output.view(query.shape)
        prefills, decodes = md.prefill_metadata, md.decode_metadata
        first = md.num_decode_tokens
        if prefills is not None:
            tokens = slice(first, first + md.num_prefill_tokens)
            attend(self._rows(query[tokens], caches, prefills, scales, attended[tokens]))
        if decodes is not None:
            rows = self._rows(query[:first], caches, decodes, scales, attended[:first])
            if _one_query_each(decodes):
                one_each = rows._replace(query_start_loc=None, max_query_len=1)
                attend_decodes(one_each, decodes.attn_bias)
            else:
                attend(rows)
        return output

    def _rows(
        self,
        query: torch.Tensor,
        caches: tuple[torch.Tensor, torch.Tensor],
        md: XFormersAttentionMetadata,
        scales: tuple[torch.Tensor, torch.Tensor],
        out: torch.Tensor,
    ) -> Attention:
        """Return the arguments of attention over the rows of `md`."""
        return Attention(
            query,
            *caches,
            md.query_start_loc,
            md.seq_lens,
            md.block_table,
            self.scale,
            md.max_query_len,
            md.max_seq_len,
            self.window,
            self.logits_soft_cap,
            *scales,
            out,
        )


def _one_query_each(decodes: XFormersAttentionMetadata) -> bool:
    """True if the mask shows that each row has one query, so tokens and rows coincide."""
    # Equal numbers of rows and tokens do not show it: an idle row and a padding token cancel out.
    queries = getattr(decodes.attn_bias, "q_seqinfo", None)
    if queries is None or decodes.num_decodes != decodes.num_decode_tokens:
        return False
    one_each: bool = queries.min_seqlen == queries.max_seqlen == 1
    return one_each and len(queries.seqstart_py) == decodes.num_decodes + 1


class XFormersAttentionBackend(XFormersBackend):
    """Classes and cache operations of the XFormers backend."""

    @staticmethod
    def get_impl_cls() -> type[XFormersAttentionImpl]:
        """Return the class that runs attention."""
        return XFormersAttentionImpl

    @staticmethod
    def get_state_cls() -> type[CommonAttentionState]:
        """Return the class of the state for CUDA graphs."""
        return CommonAttentionState

    @staticmethod
    def get_builder_cls() -> type[Any]:
        """Return the class that builds the metadata."""
        return XFormersAttentionMetadataBuilder

    swap_blocks = staticmethod(swap_blocks)
    copy_blocks = staticmethod(copy_blocks)
