"""Lengths and block tables for each kind of attention (SPEC.md section 7).

For first-generation (V0) metadata of encoder-decoder models. Both packages share these
functions: they select fields and compute nothing.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from ..checks.common import check_bool
from ..interface.constants import AttentionType
from ..interface.errors import MetadataError
from ..interface.protocols import EncoderDecoderMetadata

_ENCODER: Final = ("encoder_seq_lens", "encoder_seq_lens_tensor", "max_encoder_seq_len")
_CROSS: Final = ("cross_slot_mapping", "cross_block_tables")


def get_num_prefill_decode_query_kv_tokens(
    attn_metadata: EncoderDecoderMetadata, attn_type: str
) -> tuple[int, int, int]:
    """Return (prefill query tokens, prefill key tokens, decode query tokens) of the batch.

    Queries of cross attention are the decoder's tokens, its keys the encoder's; the
    encoder has no decodes. Raise MetadataError for another `attn_type`, and if
    num_encoder_tokens is needed and not set. SPEC.md section 7.
    """
    operation = "get_num_prefill_decode_query_kv_tokens"
    md = attn_metadata
    _check_metadata(operation, md)
    if attn_type == AttentionType.ENCODER:
        tokens = _field(operation, md, "num_encoder_tokens", attn_type)
        return tokens, tokens, 0
    if attn_type == AttentionType.ENCODER_DECODER:
        tokens = _field(operation, md, "num_encoder_tokens", attn_type)
        return md.num_prefill_tokens, tokens, md.num_decode_tokens
    if attn_type in (AttentionType.DECODER, AttentionType.ENCODER_ONLY):
        return md.num_prefill_tokens, md.num_prefill_tokens, md.num_decode_tokens
    if not isinstance(attn_type, str):
        raise TypeError(f"{operation}: attn_type is {type(attn_type).__name__}, expected str")
    raise MetadataError(operation, "attn_type", repr(attn_type), "a value of AttentionType")


def get_seq_len_block_table_args(
    attn_metadata: EncoderDecoderMetadata, is_prompt: bool, attn_type: str
) -> tuple[torch.Tensor, int, torch.Tensor | None]:
    """Return (sequence lengths, their maximum, block tables) of the keys of attention.

    The tensors are those of the metadata, not copies. The maximum of a decoder is that of
    its prefills or of its decodes; the encoder has no block tables. Raise AttributeError
    for another `attn_type` (also ENCODER_ONLY), MetadataError for a needed field that is
    None, TypeError for an `is_prompt` that is not a bool. SPEC.md section 7.
    """
    operation = "get_seq_len_block_table_args"
    md = attn_metadata
    _check_metadata(operation, md)
    check_bool(operation, "is_prompt", is_prompt)
    if attn_type == AttentionType.DECODER:
        lengths = _field(operation, md, "seq_lens_tensor", attn_type)
        longest = "max_prefill_seq_len" if is_prompt else "max_decode_seq_len"
        return lengths, _field(operation, md, longest, attn_type), md.block_tables
    if attn_type not in (AttentionType.ENCODER_DECODER, AttentionType.ENCODER):
        expected = "DECODER, ENCODER or ENCODER_DECODER"
        raise AttributeError(f"{operation}: attn_type is {attn_type!r}, expected {expected}")
    lengths = _field(operation, md, "encoder_seq_lens_tensor", attn_type)
    longest_encoder = _field(operation, md, "max_encoder_seq_len", attn_type)
    if attn_type == AttentionType.ENCODER:
        return lengths, longest_encoder, None
    return lengths, longest_encoder, _field(operation, md, "cross_block_tables", attn_type)


def is_all_encoder_attn_metadata_set(attn_metadata: EncoderDecoderMetadata) -> bool:
    """True if all fields for attention within the encoder are set.

    A field that the metadata's class does not have is not set. SPEC.md section 7.
    """
    _check_metadata("is_all_encoder_attn_metadata_set", attn_metadata)
    return all(getattr(attn_metadata, name, None) is not None for name in _ENCODER)


def is_all_cross_attn_metadata_set(attn_metadata: EncoderDecoderMetadata) -> bool:
    """True if all fields for attention to the encoder are set. SPEC.md section 7."""
    _check_metadata("is_all_cross_attn_metadata_set", attn_metadata)
    return all(getattr(attn_metadata, name, None) is not None for name in _ENCODER + _CROSS)


def _check_metadata(operation: str, metadata: object) -> None:
    if not hasattr(metadata, "num_prefill_tokens"):
        got = type(metadata).__name__
        raise TypeError(f"{operation}: attn_metadata is {got}, expected V0 attention metadata")


def _field(operation: str, metadata: object, field: str, attn_type: str) -> Any:
    value = getattr(metadata, field, None)
    if value is None:
        raise MetadataError(operation, field, None, f"a value: attn_type is {attn_type!r}")
    return value
