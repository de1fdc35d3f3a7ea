"""Tests of the metadata of state-space layers (SPEC.md section 17)."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.spec("Example: offsets [0, 3, 3, 9] in chunks of 4")
def test_chunks_end_at_rows_and_multiples(package):
    offsets = torch.tensor([0, 3, 3, 9])
    chunks, last, rows = package.compute_varlen_chunk_metadata(offsets, 4)
    assert chunks.tolist() == [0, 3, 4, 8, 9]
    assert last.tolist() == [0, -1, 3]
    assert rows.tolist() == [0, 2, 2, 2]
    assert {chunks.dtype, last.dtype, rows.dtype} == {torch.int32}


@pytest.mark.spec("Example: H = A = 4, B = 8, alignment 1, sequences [25, 21]")
def test_checkpoints_of_prefills(package):
    rows, sizes = ([25, 21], [21, 5]), (4, 8, 1, False, 4)
    checkpoints = package.compute_mamba_prefill_checkpoints
    assert checkpoints(*rows, *sizes) == ([20, 0], [2, -1])
    assert checkpoints(*rows, *sizes, num_hash_lookahead_tokens=2) == ([16, 0], [2, -1])
    assert checkpoints(*rows, 4, 8, None, False, 4) == ([0, 0], [-1, -1])


def test_a_draft_drops_the_last_block(package):
    checkpoints = package.compute_mamba_prefill_checkpoints
    assert checkpoints([25, 24], [21, 20], 4, 8, 1, True, 4) == ([16, 16], [2, 1])
