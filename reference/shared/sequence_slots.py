"""Inputs of the slot computation of one sequence (SPEC.md section 5).

Both packages share these functions: arithmetic on three numbers and a dict lookup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..checks.common import check_bool, check_int, check_tables


def compute_slot_mapping_start_idx(
    is_prompt: bool, query_len: int, context_len: int, sliding_window: int | None
) -> int:
    """Return the first position, in tokens, that gets a slot.

    It is above 0 only for a prompt longer than the sliding window: the keys before the
    window are never read. Raise MetadataError for negative lengths and a window below 1.
    SPEC.md section 5.
    """
    operation = "compute_slot_mapping_start_idx"
    check_bool(operation, "is_prompt", is_prompt)
    check_int(operation, "query_len", query_len, 0)
    check_int(operation, "context_len", context_len, 0)
    if sliding_window is None:
        return 0
    check_int(operation, "sliding_window", sliding_window, 1)
    return max(0, query_len - sliding_window) if is_prompt else 0


def is_block_tables_empty(
    block_tables: Mapping[int, Sequence[int] | None] | None,
) -> bool:
    """True for None and for a dict whose values are all None. SPEC.md section 5."""
    check_tables("is_block_tables_empty", block_tables)
    return block_tables is None or all(table is None for table in block_tables.values())
