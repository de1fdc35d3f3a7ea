"""Tests of the shapes of speculative decoding: strides and errors (SPEC.md section 6)."""

from __future__ import annotations

import pytest
import torch

from attnproof.reference import (
    MetadataError,
    reshape_attn_output_for_spec_decode,
    reshape_query_for_spec_decode,
)


def test_a_strided_query_stays_a_view():
    query = torch.zeros(2, 6, 4).transpose(0, 1)[:, :, ::2]
    shaped = reshape_query_for_spec_decode(query, 3)
    query.fill_(7)
    assert shaped.shape == (3, 2, 2, 2)
    assert (shaped == 7).all()


def test_no_tokens():
    assert reshape_query_for_spec_decode(torch.zeros(0, 2, 4), 3).shape == (3, 0, 2, 4)
    assert reshape_attn_output_for_spec_decode(torch.zeros(3, 0, 2, 4)).shape == (0, 2, 4)


def test_an_output_that_no_view_can_merge_is_an_error():
    apart = torch.zeros(2, 4, 2, 4)[:, :3]
    with pytest.raises(MetadataError, match=r"attn_output is of strides \(32, 8, 4, 1\)"):
        reshape_attn_output_for_spec_decode(apart)


@pytest.mark.parametrize("shape", [(6,), (6, 2), (3, 2, 2, 4, 1)])
def test_another_number_of_dimensions_is_an_error(shape):
    with pytest.raises(MetadataError, match="expected 3-D"):
        reshape_query_for_spec_decode(torch.zeros(shape), 1)
    with pytest.raises(MetadataError, match="expected 3-D or 4-D"):
        reshape_attn_output_for_spec_decode(torch.zeros(shape))


@pytest.mark.parametrize("batch_size", [2.0, True, None])
def test_a_batch_size_of_another_type_is_an_error(batch_size):
    with pytest.raises(TypeError, match="batch_size is"):
        reshape_query_for_spec_decode(torch.zeros(6, 2, 4), batch_size)
