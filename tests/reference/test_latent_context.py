"""Tests of contexts and keys in chunks (SPEC.md section 22)."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.spec("Example: keys [4, 3, 9], queries [2, 3, 4], a workspace of 9 rows and 80 bytes")
def test_chunks_of_an_indexer(package):
    lengths = torch.tensor([4, 3, 9]), torch.tensor([2, 3, 4])
    chunks = package.split_indexer_prefill_chunks(*lengths, 9, 80)
    bounds = [(rows.start, rows.stop, part.start, part.stop) for rows, part in chunks]
    assert bounds == [(0, 1, 0, 2), (1, 2, 0, 3), (2, 3, 0, 2), (2, 3, 2, 4)]


@pytest.mark.spec("Example: two ranks of 3 rows, P = [2, 1], S = [2, 0], n = [[3, 2], [1, 1]]")
def test_gathered_context(package):
    rows = torch.arange(6, dtype=torch.int32)[:, None]
    lists = [2, 1], [[3, 2], [1, 1]], [2, 0]
    kv_c_normed, k_pe = package.reorg_kvcache(rows, rows, *lists, 3, 2, 3)
    assert kv_c_normed.tolist() == k_pe.tolist() == [[0], [2], [5]]


@pytest.mark.spec("Example: contexts [5, 0, 9], queries [1, 2, 3], a workspace of 8 rows")
def test_chunks_of_context(package):
    lengths = torch.tensor([5, 0, 9]), torch.tensor([0, 1, 3, 6])
    context = package.build_mla_chunked_context_metadata(*lengths, 8, 4, True, 1, 1)
    chunks = [(c.request_slice, c.starts.tolist(), c.seq_lens.tolist()) for c in context.chunks]
    assert chunks == [
        (slice(0, 1), [0], [5]),
        (slice(2, 3), [0], [8]),
        (slice(2, 3), [8], [1]),
    ]
    assert context.empty_token_slices == [slice(1, 3)]
