"""Tests of the request of each query token (SPEC.md section 20)."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.spec("Example: offsets [0, 2, 2, 3], 5 tokens with padding, a buffer of 6 times 9")
def test_requests_of_tokens(package):
    out = torch.full((6,), 9, dtype=torch.int32)
    rows = package.compute_token_to_req_indices(torch.tensor([0, 2, 2, 3]), out, 3, 5)
    assert rows.tolist() == [0, 0, 2, 0, 0]
    assert rows.data_ptr() == out.data_ptr()
    assert out.tolist() == [0, 0, 2, 0, 0, 9]
