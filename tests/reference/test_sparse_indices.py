"""Tests of the rows that sparse attention selects (SPEC.md section 22)."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.spec("Example: B = 4, blocks [5, 9] of a request, 6 rows from block to block")
def test_rows_of_selected_keys(package):
    tables = [torch.tensor(values, dtype=torch.int32) for values in ([0], [[5, 9]], [[6, -1, 1]])]
    convert = package.convert_req_index_to_global_index
    assert convert(*tables, 4, 6).tolist() == [[56, -1, 31]]
    assert convert(*tables, 4, 6, dcp_size=2).tolist() == [[33, -1, -1]]
