"""Every kernel compiles ahead of time for each supported architecture; no GPU needed.

The interpreter forgives what the compiler does not: types that change in a loop or
differ between branches.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from optimized import dispatch

pytestmark = pytest.mark.skipif(
    dispatch.INTERPRETED, reason="the interpreter replaces the compiler"
)

TARGETS = [("cuda", 80, 32), ("cuda", 90, 32), ("cuda", 100, 32), ("hip", "gfx942", 64)]
KERNELS: list[tuple[str, str, set[str], dict[str, Any]]] = [
    (
        "slot_mapping",
        "_slot_mapping_kernel",
        {"query_start_loc", "num_computed", "table", "start_idx", "out"},
        {"MASKED": True, "BLOCK": 512},
    ),
    (
        "local_attention",
        "_gather_virtual_kernel",
        {"packed", "table", "starts", "lengths", "virtual_table"},
        {"ROWS": 2, "COLUMNS": 512},
    ),
    (
        "ubatch",
        "_slice_rows_kernel",
        {"query_start_loc", "seq_lens", "slices", "child_starts", "child_seq_lens"},
        {"ONE_SLICE": False, "BLOCK": 256},
    ),
    (
        "ubatch",
        "_slice_rows_kernel",
        {"query_start_loc", "seq_lens", "slices", "child_starts", "child_seq_lens"},
        {"ONE_SLICE": True, "BLOCK": 256},
    ),
    ("kv_cache", "_copy_blocks_kernel", {"source", "target", "pairs"}, {"BLOCK": 1024}),
    (
        "fast_prefill",
        "_count_sampled_kernel",
        {"query_start_loc", "indices", "counted"},
        {"ROWS": 16, "INDICES": 256},
    ),
    (
        "causal_conv1d",
        "_write_pointers_kernel",
        {"first_program", "pointers"},
        {"BLOCK": 512},
    ),
]
ONES = {
    "_slot_mapping_kernel": [
        *("query_start_loc_stride", "num_computed_stride", "table_row_stride"),
        *("table_column_stride", "start_idx_stride", "out_stride", "block_size"),
    ],
    "_gather_virtual_kernel": ["table_row_stride", "table_column_stride", "columns"],
    "_slice_rows_kernel": ["query_start_loc_stride", "seq_lens_stride"],
    "_count_sampled_kernel": ["query_start_loc_stride", "indices_stride"],
    "_write_pointers_kernel": [],
    "_copy_blocks_kernel": ["id_stride", "source0", "target0", "n2", "n1"],
}
ALWAYS_INT64 = {"first_program", "out", "pairs", "slices"}


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target[1]))
@pytest.mark.parametrize("pointee", ["i32", "i64"])
@pytest.mark.parametrize("ones", [False, True], ids=["", "ones"])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel[1])
def test_compiles(kernel, ones, pointee, target):
    """`ones`: strides and sizes of 1, which Triton compiles in as constants."""
    import triton
    from triton.backends.compiler import GPUTarget

    module, name, pointers, constants = kernel
    if ones:
        constants = constants | dict.fromkeys(ONES[name], 1)
    function = getattr(importlib.import_module(f"optimized.kernels.{module}"), name)
    signature = {
        argument: "constexpr"
        if argument in constants
        else f"*{'i64' if argument in ALWAYS_INT64 else pointee}"
        if argument in pointers
        else "i32"
        for argument in function.arg_names
    }
    source = triton.compiler.ASTSource(function, signature, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget(*target))
    assert compiled.metadata.shared <= 48 * 1024
