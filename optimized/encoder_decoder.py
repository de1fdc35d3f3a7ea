"""Lengths and block tables for each kind of attention (SPEC.md section 7).

Short forms for well-formed metadata. With checks, and for metadata that the forms cannot
read, they call the functions of the same names that both packages share.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from attnproof.reference import shared
from attnproof.reference.interface import AttentionType
from attnproof.reference.interface.protocols import EncoderDecoderMetadata

from .checking import checks

__all__ = [
    "get_num_prefill_decode_query_kv_tokens",
    "get_seq_len_block_table_args",
    "is_all_cross_attn_metadata_set",
    "is_all_encoder_attn_metadata_set",
]

_checked = checks.follow(globals())

_DECODER: Final = AttentionType.DECODER
_ENCODER: Final = AttentionType.ENCODER
_ENCODER_DECODER: Final = AttentionType.ENCODER_DECODER
_DECODERS: Final = (AttentionType.DECODER, AttentionType.ENCODER_ONLY)


def get_num_prefill_decode_query_kv_tokens(
    attn_metadata: EncoderDecoderMetadata, attn_type: str
) -> tuple[int, int, int]:
    """Return (prefill query tokens, prefill key tokens, decode query tokens) of the batch.

    Result and errors as in `reference`. SPEC.md section 7.
    """
    md = attn_metadata
    if not _checked:
        if attn_type in _DECODERS:
            tokens = md.num_prefill_tokens
            return tokens, tokens, md.num_decode_tokens
        encoder_tokens: Any = md.num_encoder_tokens
        if attn_type == _ENCODER:
            return encoder_tokens, encoder_tokens, 0
        if attn_type == _ENCODER_DECODER:
            return md.num_prefill_tokens, encoder_tokens, md.num_decode_tokens
    return shared.get_num_prefill_decode_query_kv_tokens(md, attn_type)


def get_seq_len_block_table_args(
    attn_metadata: EncoderDecoderMetadata, is_prompt: bool, attn_type: str
) -> tuple[torch.Tensor, int, torch.Tensor | None]:
    """Return (sequence lengths, their maximum, block tables) of the keys of attention.

    Result and errors as in `reference`. SPEC.md section 7.
    """
    md: Any = attn_metadata
    if not _checked:
        if attn_type == _DECODER:
            longest = md.max_prefill_seq_len if is_prompt else md.max_decode_seq_len
            return md.seq_lens_tensor, longest, md.block_tables
        if attn_type == _ENCODER_DECODER:
            return md.encoder_seq_lens_tensor, md.max_encoder_seq_len, md.cross_block_tables
        if attn_type == _ENCODER:
            return md.encoder_seq_lens_tensor, md.max_encoder_seq_len, None
    return shared.get_seq_len_block_table_args(md, is_prompt, attn_type)


def is_all_encoder_attn_metadata_set(attn_metadata: EncoderDecoderMetadata) -> bool:
    """True if all fields for attention within the encoder are set. SPEC.md section 7."""
    md = attn_metadata
    try:
        return (
            md.encoder_seq_lens is not None
            and md.encoder_seq_lens_tensor is not None
            and md.max_encoder_seq_len is not None
        )
    except AttributeError:  # a class without the fields, or no metadata at all
        return shared.is_all_encoder_attn_metadata_set(md)


def is_all_cross_attn_metadata_set(attn_metadata: EncoderDecoderMetadata) -> bool:
    """True if all fields for attention to the encoder are set. SPEC.md section 7."""
    md = attn_metadata
    try:
        return (
            md.encoder_seq_lens is not None
            and md.encoder_seq_lens_tensor is not None
            and md.max_encoder_seq_len is not None
            and md.cross_slot_mapping is not None
            and md.cross_block_tables is not None
        )
    except AttributeError:  # a class without the fields, or no metadata at all
        return shared.is_all_cross_attn_metadata_set(md)
