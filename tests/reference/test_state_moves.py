"""Tests of states that are copied between blocks (SPEC.md section 17)."""

from __future__ import annotations

import pytest
import torch


def _ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def _states():
    """Return windows of 3 tokens and states of 7 blocks, which name their block and token."""
    blocks = torch.arange(7, dtype=torch.int32)
    return (blocks[:, None] * 10 + _ints(0, 1, 2))[..., None], blocks[:, None].clone()


@pytest.mark.spec("Example: B = 4, c = 4, q = 2, src = 0, a = 1, table [3, 5]: block 5 gets the st")
def test_a_request_goes_on_in_its_next_block(package):
    column, (windows, states) = _ints(0), _states()
    pools = (_ints(4), _ints(0, 2), _ints(1), _ints(3, 5)[None])
    package.preprocess_mamba_align(_ints(0), column, *pools, windows, states, 4)
    assert (column.item(), states[5].item()) == (1, 3)
    assert windows[5].flatten().tolist() == [30, 31, 32]


@pytest.mark.spec("Example: B = 4, c = 5, a = 3, src = 1, table [3, 5, 6]: off = 1, block 3 gets")
def test_the_state_at_the_end_of_a_block_is_kept(package):
    windows, states = _states()
    pools = (_ints(1), _ints(5), _ints(3), _ints(3, 5, 6)[None])
    package.postprocess_mamba_align(_ints(0), *pools, windows, states, 4)
    assert states[3].item() == 6
    assert windows[3].flatten().tolist() == [51, 52, 32]


def test_any_number_of_rows_has_no_slot(package):
    windows, states = _states()
    pools = (_ints(1), _ints(4), _ints(1), _ints(3, 5, 6)[None])
    package.postprocess_mamba_align(_ints(-1, 0, -1), *pools, windows, states, 4)
    assert states[3].item() == 5
