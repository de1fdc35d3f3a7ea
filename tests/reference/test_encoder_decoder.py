"""Tests of counts, lengths and block tables for each kind of attention."""

from __future__ import annotations

import pytest
import torch

from attnproof.harness.cases.engines.config import DecoderMetadata, EncoderDecoderMetadata
from attnproof.reference import AttentionType, MetadataError

DECODER, ENCODER = AttentionType.DECODER, AttentionType.ENCODER
ENCODER_ONLY, CROSS = AttentionType.ENCODER_ONLY, AttentionType.ENCODER_DECODER
COMMON = {
    "num_prefills": 1,
    "num_prefill_tokens": 5,
    "num_decode_tokens": 2,
    "seq_lens": [7, 9, 4],
    "seq_lens_tensor": torch.tensor([7, 9, 4], dtype=torch.int32),
    "max_prefill_seq_len": 7,
    "max_decode_seq_len": 9,
    "block_tables": torch.tensor([[1], [2], [3]], dtype=torch.int32),
}
OF_ENCODER = {
    "encoder_seq_lens": [3, 8, 1],
    "encoder_seq_lens_tensor": torch.tensor([3, 8, 1], dtype=torch.int32),
    "max_encoder_seq_len": 8,
    "num_encoder_tokens": 12,
    "cross_slot_mapping": torch.arange(12),
    "cross_block_tables": torch.tensor([[4], [5], [6]], dtype=torch.int32),
}
BOTH = ("is_all_encoder_attn_metadata_set", "is_all_cross_attn_metadata_set")


def metadata(**changes):
    return EncoderDecoderMetadata(**COMMON | OF_ENCODER | changes)


@pytest.mark.parametrize(
    ("kind", "counts"),
    [(ENCODER, (12, 12, 0)), (CROSS, (5, 12, 2)), (DECODER, (5, 5, 2)), (ENCODER_ONLY, (5, 5, 2))],
)
def test_query_and_key_tokens(package, kind, counts):
    assert package.get_num_prefill_decode_query_kv_tokens(metadata(), kind) == counts


@pytest.mark.parametrize("kind", [ENCODER, CROSS])
def test_encoder_tokens_must_be_counted(package, kind):
    with pytest.raises(MetadataError, match="num_encoder_tokens is None, expected a value"):
        package.get_num_prefill_decode_query_kv_tokens(metadata(num_encoder_tokens=None), kind)


def test_other_kinds_are_errors(package):
    with pytest.raises(MetadataError, match="attn_type is 'cross', expected a value of Attention"):
        package.get_num_prefill_decode_query_kv_tokens(metadata(), "cross")
    with pytest.raises(TypeError, match="attn_type is int"):
        package.get_num_prefill_decode_query_kv_tokens(metadata(), 1)


@pytest.mark.parametrize(
    ("kind", "is_prompt", "lengths", "longest", "tables"),
    [
        (DECODER, True, "seq_lens_tensor", 7, "block_tables"),
        (DECODER, False, "seq_lens_tensor", 9, "block_tables"),
        (CROSS, True, "encoder_seq_lens_tensor", 8, "cross_block_tables"),
        (CROSS, False, "encoder_seq_lens_tensor", 8, "cross_block_tables"),
        (ENCODER, True, "encoder_seq_lens_tensor", 8, None),
    ],
)
def test_lengths_and_tables(package, kind, is_prompt, lengths, longest, tables):
    md = metadata()
    made = package.get_seq_len_block_table_args(md, is_prompt, kind)
    assert made[0] is getattr(md, lengths)
    assert made[1] == longest
    assert made[2] is (tables and getattr(md, tables))


def test_a_decoder_may_have_no_tables(package):
    md = metadata(block_tables=None)
    assert package.get_seq_len_block_table_args(md, True, DECODER)[2] is None


@pytest.mark.parametrize("kind", [ENCODER_ONLY, "cross", None])
def test_kinds_without_lengths_are_errors(package, kind):
    with pytest.raises(AttributeError, match="attn_type is"):
        package.get_seq_len_block_table_args(metadata(), True, kind)


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (DECODER, "seq_lens_tensor"),
        (DECODER, "max_prefill_seq_len"),
        (ENCODER, "encoder_seq_lens_tensor"),
        (CROSS, "max_encoder_seq_len"),
        (CROSS, "cross_block_tables"),
    ],
)
def test_lengths_and_tables_must_be_set(package, kind, field):
    with pytest.raises(MetadataError, match=f"{field} is None, expected a value"):
        package.get_seq_len_block_table_args(metadata(**{field: None}), True, kind)


@pytest.mark.parametrize(
    ("absent", "encoder", "cross"),
    [
        (None, True, True),
        ("encoder_seq_lens", False, False),
        ("encoder_seq_lens_tensor", False, False),
        ("max_encoder_seq_len", False, False),
        ("num_encoder_tokens", True, True),
        ("cross_slot_mapping", True, False),
        ("cross_block_tables", True, False),
    ],
)
def test_predicates_of_set_fields(package, absent, encoder, cross):
    md = metadata(**({absent: None} if absent else {}))
    assert [getattr(package, name)(md) for name in BOTH] == [encoder, cross]


@pytest.mark.spec("E49: AttributeError")
@pytest.mark.parametrize("name", BOTH)
def test_zero_and_empty_are_set_and_a_decoder_has_nothing(package, name):
    empty = metadata(encoder_seq_lens=[], max_encoder_seq_len=0)
    assert getattr(package, name)(empty) is True
    assert getattr(package, name)(DecoderMetadata(**COMMON)) is False
    with pytest.raises(TypeError, match=f"{name}: attn_metadata is str, expected V0"):
        getattr(package, name)("seven")
