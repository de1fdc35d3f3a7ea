"""Common parts of the two packages' XFormers backends (SPEC.md section 8).

They are constants, views of tensors and checks, with nothing to optimize. Each package
has its own builder and `forward`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import torch

from ..checks.common import check_int
from ..checks.xformers import IMPL, check_impl
from ..interface.constants import AttentionType
from ..interface.errors import MetadataError
from .backend import AttentionBackend, AttentionImpl
from .graph_state import CommonAttentionState

HEAD_SIZES: Final = tuple(range(32, 257, 8))
_BLOCK_MULTIPLE: Final = 16


@dataclass
class XFormersAttentionMetadata:
    """Metadata of an engine step for the XFormers backend: decodes first, then prefills."""

    num_actual_tokens: int
    max_query_len: int
    """Upper bound of the query lengths, in tokens."""
    query_start_loc: torch.Tensor
    """(R + 1,) offsets of the requests' query tokens."""
    max_seq_len: int
    """Upper bound of the sequence lengths, in tokens."""
    seq_lens: torch.Tensor
    """(R,) tokens of each request, computed and query."""
    block_table: torch.Tensor
    """(R, W) block ids."""
    slot_mapping: torch.Tensor
    """(>= num_actual_tokens,) int64 cache slots, -1 for none."""
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    num_prefills: int = 0
    num_decodes: int = 0
    attn_bias: Any = None
    """xformers' paged mask of the decodes."""
    _prefills: XFormersAttentionMetadata | None = field(
        default=None, init=False, repr=False, compare=False
    )
    _decodes: XFormersAttentionMetadata | None = field(
        default=None, init=False, repr=False, compare=False
    )

    @property
    def prefill_metadata(self) -> XFormersAttentionMetadata | None:
        """Rows and tokens after the split, rebased to 0; None without prefills."""
        if not self.num_prefills:
            return None
        if self._prefills is None:
            offsets = self.query_start_loc[self.num_decodes :]
            first, stop = self.num_decode_tokens, self.num_decode_tokens + self.num_prefill_tokens
            self._prefills = XFormersAttentionMetadata(
                num_actual_tokens=self.num_prefill_tokens,
                max_query_len=self.max_query_len,
                query_start_loc=offsets - offsets[0],
                max_seq_len=self.max_seq_len,
                seq_lens=self.seq_lens[self.num_decodes :],
                block_table=self.block_table[self.num_decodes :],
                slot_mapping=self.slot_mapping[first:stop],
                num_prefill_tokens=self.num_prefill_tokens,
                num_prefills=self.num_prefills,
            )
        return self._prefills

    @property
    def decode_metadata(self) -> XFormersAttentionMetadata | None:
        """Rows and tokens before the split; None without decode tokens."""
        if not self.num_decode_tokens:
            return None
        if self._decodes is None:
            self._decodes = XFormersAttentionMetadata(
                num_actual_tokens=self.num_decode_tokens,
                max_query_len=self.max_query_len,
                query_start_loc=self.query_start_loc[: self.num_decodes + 1],
                max_seq_len=self.max_seq_len,
                seq_lens=self.seq_lens[: self.num_decodes],
                block_table=self.block_table[: self.num_decodes],
                slot_mapping=self.slot_mapping[: self.num_decode_tokens],
                num_decode_tokens=self.num_decode_tokens,
                num_decodes=self.num_decodes,
                attn_bias=self.attn_bias,
            )
        return self._decodes


class XFormersBackend(AttentionBackend):
    """XFormers backend without its builder, its implementation and its block copies."""

    accept_output_buffer: ClassVar[bool] = True

    @classmethod
    def get_supported_dtypes(cls) -> list[torch.dtype]:
        """Return the dtypes of query, key and value."""
        return [torch.float16, torch.bfloat16]

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        """Return the head sizes: multiples of 8 from 32 to 256."""
        return list(HEAD_SIZES)

    @classmethod
    def validate_head_size(cls, head_size: int) -> None:
        """Raise MetadataError for a head size that is not supported."""
        operation = "validate_head_size"
        check_int(operation, "head_size", head_size, 1)
        if head_size not in HEAD_SIZES:
            expected = f"one of {', '.join(map(str, HEAD_SIZES))}"
            raise MetadataError(operation, "head_size", head_size, expected)

    @staticmethod
    def get_name() -> str:
        """Return the backend's registered name."""
        return "XFORMERS_VLLM_V1"

    @staticmethod
    def get_metadata_cls() -> type[XFormersAttentionMetadata]:
        """Return the class of the metadata of an engine step."""
        return XFormersAttentionMetadata

    @staticmethod
    def get_state_cls() -> type[CommonAttentionState]:
        """Return the class of the graph state, the common one."""
        return CommonAttentionState

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int
    ) -> tuple[int, ...]:
        """Return (2, num_blocks, block_size, num_kv_heads, head_size).

        Raise MetadataError for a block size that is not a multiple of 16.
        """
        operation = "get_kv_cache_shape"
        check_int(operation, "num_blocks", num_blocks, 0)
        check_int(operation, "block_size", block_size, 1)
        check_int(operation, "num_kv_heads", num_kv_heads, 1)
        check_int(operation, "head_size", head_size, 1)
        if block_size % _BLOCK_MULTIPLE:
            expected = f"a multiple of {_BLOCK_MULTIPLE}"
            raise MetadataError(operation, "block_size", block_size, expected)
        return (2, num_blocks, block_size, num_kv_heads, head_size)

    @staticmethod
    def use_cascade_attention(*_args: Any, **_kwargs: Any) -> bool:
        """Return False: attention to a shared prefix is not computed separately."""
        return False


class XFormersImpl(AttentionImpl[XFormersAttentionMetadata]):
    """Checked constants of a layer; each package implements `forward`."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
    ) -> None:
        """Raise NotImplementedError, MetadataError or TypeError as in SPEC.md section 8."""
        kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        unsupported = (
            ("KV sharing", kv_sharing_target_layer_name is not None),
            ("alibi slopes", alibi_slopes is not None),
            (f"attention of type {attn_type}", attn_type != AttentionType.DECODER),
        )
        for option, is_given in unsupported:
            if is_given:
                raise NotImplementedError(f"{IMPL}: {option} is not supported")
        XFormersBackend.validate_head_size(head_size)
        check_impl(num_heads, kv_heads, scale, sliding_window, kv_cache_dtype, logits_soft_cap)
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = kv_heads
        self.num_queries_per_kv = num_heads // kv_heads
        self.alibi_slopes = None
        self.sliding_window = (-1, -1) if sliding_window is None else (sliding_window - 1, 0)
        self.kv_cache_dtype = kv_cache_dtype
        self.logits_soft_cap = logits_soft_cap or 0
        self.kv_sharing_target_layer_name = None

    @property
    def window(self) -> int | None:
        """Number of keys that a query sees, its own included; None without a window."""
        left = self.sliding_window[0]
        return None if left < 0 else left + 1
