"""Tests of chunked local attention in cases that published versions get wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch


@pytest.mark.spec("E27: a batch without requests raises IndexError")
def test_a_batch_without_requests(package, make_metadata):
    virtual = package.make_local_attention_virtual_batches(4, make_metadata([], []), 2)
    assert virtual.query_start_loc.tolist() == virtual.query_start_loc_cpu.tolist() == [0]
    assert virtual.seq_lens.tolist() == virtual.num_computed_tokens_cpu.tolist() == []
    assert virtual.block_table_tensor.shape[0] == 0
    sizes = (virtual.num_reqs, virtual.num_actual_tokens)
    assert (*sizes, virtual.max_query_len, virtual.max_seq_len) == (0, 0, 0, 0)


@pytest.mark.spec("E28: int64 offsets and lengths come back as int32")
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_offsets_and_lengths_keep_their_dtype(package, make_metadata, dtype):
    metadata = make_metadata([3], [6], [[4, 5, 6]], dtype=dtype)
    virtual = package.make_local_attention_virtual_batches(4, metadata, 2)
    assert virtual.query_start_loc.tolist() == [0, 1, 3]
    assert virtual.seq_lens.tolist() == [4, 2]
    names = ("query_start_loc", "seq_lens", "num_computed_tokens_cpu")
    names = (*names, "query_start_loc_cpu", "seq_lens_cpu")
    assert {getattr(virtual, name).dtype for name in names} == {dtype}
    assert virtual.block_table_tensor.dtype == torch.int32


@pytest.mark.spec("E29: the logits fields and encoder_seq_lens are dropped")
def test_logits_fields_stay_and_encoder_lengths_go_with_their_requests(package, make_metadata):
    indices = torch.tensor([2, 3, 9])
    metadata = make_metadata(
        [3, 1],
        [6, 1],
        [[4, 5, 6], [7, 0, 0]],
        logits_indices_padded=indices,
        num_logits_indices=2,
        encoder_seq_lens=np.array([11, 13], dtype=np.int32),
    )
    virtual = package.make_local_attention_virtual_batches(4, metadata, 2)
    assert virtual.query_start_loc.tolist() == [0, 1, 3, 4]
    assert virtual.logits_indices_padded is indices
    assert virtual.num_logits_indices == 2
    assert virtual.encoder_seq_lens.tolist() == [11, 11, 13]
