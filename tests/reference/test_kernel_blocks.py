"""Tests of block tables for kernels with blocks of their own (SPEC.md sections 11 and 12)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

TABLE = [[3, -1], [5, 7]]


def mapped(package, rows, *sizes, dtype=torch.int32, **more):
    table = torch.tensor(rows, dtype=dtype)
    return package.map_to_kernel_block_table(table, *sizes, **more)


@pytest.mark.spec("Example: blocks of 8 tokens, kernel blocks of 4: [[3, -1], [5, 7]] gives")
def test_kernel_blocks(package):
    assert mapped(package, TABLE, 8, 4).tolist() == [[6, 7, -1, -1], [10, 11, 14, 15]]
    packed = mapped(package, TABLE, 8, 4, 5)
    assert packed.tolist() == [[15, 16, -1, -1], [25, 26, 35, 36]]
    assert packed.dtype == torch.int32


def test_blocks_that_are_kernel_blocks_are_the_table_itself(package):
    table = torch.tensor(TABLE)
    assert package.map_to_kernel_block_table(table, 8, 8) is table
    assert package.map_to_kernel_block_table(table, 8, 8, 3).tolist() == [[9, -1], [15, 21]]


def test_a_buffer_keeps_what_is_behind_the_result(package):
    out = torch.full((3, 6), 99, dtype=torch.int32)
    result = mapped(package, TABLE, 8, 4, out=out)
    assert out.tolist() == [[6, 7, -1, -1, 99, 99], [10, 11, 14, 15, 99, 99], [99] * 6]
    assert result.shape == (2, 4)
    assert result.data_ptr() == out.data_ptr()


def test_kernel_blocks_beyond_int32(package):
    result = mapped(package, [[2**31 - 1]], 8, 4, dtype=torch.int64)
    assert result.tolist() == [[2**32 - 2, 2**32 - 1]]
    highest = mapped(package, [[2**30 - 1]], 8, 4)
    assert highest.tolist() == [[2**31 - 2, 2**31 - 1]]


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ((8, 3), "kernel_block_size is 3, expected a divisor of block_size = 8"),
        ((8, 16), "kernel_block_size"),
        ((8, 4, 1), "stride is 1, expected at least 2"),
        ((8, 4, None, torch.zeros(2, 3, dtype=torch.int32)), r"out is of shape \(2, 3\)"),
        ((8, 4, None, torch.zeros(2, 4)), "out"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(package, sizes, text):
    with pytest.raises(package.MetadataError, match=text):
        mapped(package, TABLE, *sizes)


def states(package, rows, seq_lens, block_size, speculative, mode="align"):
    table, lengths = (torch.tensor(x, dtype=torch.int32) for x in (rows, seq_lens))
    spec = SimpleNamespace(block_size=block_size, num_speculative_blocks=speculative)
    return table, package.mamba_get_block_table_tensor(table, lengths, spec, mode)


@pytest.mark.spec("Example: B = 4, K = 1, s = [0, 4, 5] and rows [1,2,3], [4,5,6], [7,8,9] give")
@pytest.mark.parametrize("mode", ["align", "all"])
def test_state_blocks(package, mode):
    _, taken = states(package, [[1, 2, 3], [4, 5, 6], [7, 8, 9]], [0, 4, 5], 4, 1, mode)
    assert taken.tolist() == [[1, 2], [4, 5], [8, 9]]
    assert taken.dtype == torch.int32


def test_without_a_mode_the_table_is_returned(package):
    table, taken = states(package, [[1, 2]], [9], 4, 1, "none")
    assert taken is table


def test_a_row_without_the_columns_is_refused(package):
    with pytest.raises(package.MetadataError, match="block_table is of 2 columns, expected at lea"):
        states(package, [[1, 2]], [5], 4, 1)
    with pytest.raises(package.MetadataError, match="mamba_cache_mode is 'some'"):
        states(package, [[1, 2]], [5], 4, 0, "some")
