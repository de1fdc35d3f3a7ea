"""Checks of input from a first-generation (V0) engine (SPEC.md rule 0.6)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ..interface.errors import MetadataError
from ..interface.protocols_v0 import InputBuilder, InterData, Runner
from .common import check_bool, check_int, check_tables
from .slots import check_block

_PER_SEQUENCE = (
    "input_tokens",
    "orig_seq_lens",
    "seq_lens",
    "query_lens",
    "context_lens",
    "curr_sliding_window_blocks",
)
ADD, BUILD = "CommonMetadataBuilder._add_seq_group", "CommonMetadataBuilder.build"


def check_ints(operation: str, field: str, values: Collection[int], minimum: int) -> None:
    """Require Python integers of at least `minimum`."""
    for kind in set(map(type, values)):
        if kind is not int:
            raise TypeError(f"{operation}: {field} holds {kind.__name__}, expected int")
    if values and min(values) < minimum:
        raise MetadataError(operation, field, min(values), f"at least {minimum}")


def check_input_builder(builder: InputBuilder) -> None:
    """Require a block size and, if there is a window, a window of at least 1 token."""
    check_int("CommonMetadataBuilder", "block_size", builder.block_size, 1)
    if builder.sliding_window is not None:
        check_int("CommonMetadataBuilder", "sliding_window", builder.sliding_window, 1)


def check_seq_group(group: InterData) -> None:
    """Require one entry a sequence, consistent lengths, and the block tables that are read."""
    check_bool(ADD, "is_prompt", group.is_prompt)
    rows = len(group.seq_ids)
    for field in _PER_SEQUENCE:
        values = getattr(group, field)
        if len(values) != rows:
            expected = f"length {rows}, one entry a sequence"
            raise MetadataError(ADD, field, f"of length {len(values)}", expected)
        if field != "input_tokens":
            check_ints(ADD, field, values, 0)
    for row, query_len in enumerate(group.query_lens):
        check_lengths(group, row, query_len)
    check_group_tables(group)


def check_lengths(group: InterData, row: int, query_len: int) -> None:
    """Require consistent lengths of one sequence, and one query token of a decode."""
    if query_len != 1 and not group.is_prompt:
        raise MetadataError(ADD, "query_lens", query_len, "1, as in every decode")
    if len(group.input_tokens[row]) != query_len:
        got = f"{len(group.input_tokens[row])} tokens"
        raise MetadataError(ADD, "input_tokens", got, f"query_len = {query_len}")
    seq_len = group.context_lens[row] + query_len
    if group.orig_seq_lens[row] != seq_len:
        expected = f"context_len + query_len = {seq_len}"
        raise MetadataError(ADD, "orig_seq_lens", group.orig_seq_lens[row], expected)


def check_group_tables(group: InterData) -> None:
    """Require a block table for each sequence; a profile run has none and no computed tokens."""
    tables = group.block_tables
    check_tables(ADD, tables)
    if tables is not None and any(table is not None for table in tables.values()):
        for seq_id in group.seq_ids:
            if tables.get(seq_id) is None:
                got = f"without sequence {seq_id}"
                raise MetadataError(ADD, "block_tables", got, "a table for each sequence")
        return
    if group.prefix_cache_hit:
        raise MetadataError(ADD, "block_tables", "empty", "a table, as the prefix cache was hit")
    if any(group.context_lens):
        longest = max(group.context_lens)
        raise MetadataError(ADD, "context_lens", longest, "0 without block tables")


def check_build(
    seq_lens: list[int],
    query_lens: list[int],
    cuda_graph_pad_size: int,
    batch_size: int,
    rows: int,
    tokens: int,
) -> None:
    """Require lengths of `rows` sequences with `tokens` query tokens, as they were added."""
    check_int(BUILD, "cuda_graph_pad_size", cuda_graph_pad_size, -1)
    check_int(BUILD, "batch_size", batch_size, 0)
    padded = rows + max(0, cuda_graph_pad_size)
    for field, values, length in (("seq_lens", seq_lens, padded), ("query_lens", query_lens, rows)):
        if not isinstance(values, list):
            raise TypeError(f"{BUILD}: {field} is {type(values).__name__}, expected list")
        if len(values) != length:
            raise MetadataError(BUILD, field, f"of length {len(values)}", f"length {length}")
        check_ints(BUILD, field, values, 0)
        if sum(values) >= 1 << 31:
            got = f"{sum(values)} tokens in all"
            raise MetadataError(BUILD, field, got, "less than 2**31: offsets are int32")
    if not any(query_lens):
        raise MetadataError(BUILD, "query_lens", "without any token", "at least one query token")
    if sum(query_lens) != tokens:
        expected = f"{tokens}, as many as were added"
        raise MetadataError(BUILD, "query_lens", f"{sum(query_lens)} tokens", expected)


def check_graph(
    runner: Runner, num_prefills: int, padded_rows: int, batch_size: int, most_blocks: int
) -> None:
    """Require decodes only, a batch of the padded size, and graph block tables of that size."""
    if num_prefills:
        got = f"for {num_prefills} prompts"
        raise MetadataError(BUILD, "cuda_graph_pad_size", got, "-1: graphs hold decodes only")
    if batch_size != padded_rows:
        expected = f"sequences and padding, {padded_rows}"
        raise MetadataError(BUILD, "batch_size", batch_size, expected)
    height, width = graph_shape(BUILD, runner)
    if batch_size > height:
        expected = f"at most {height}, the rows of graph_block_tables"
        raise MetadataError(BUILD, "batch_size", batch_size, expected)
    if most_blocks > width:
        expected = f"at most {width}, the columns of graph_block_tables"
        raise MetadataError(BUILD, "block_tables", f"{most_blocks} blocks long", expected)


def graph_shape(operation: str, runner: Runner) -> tuple[int, int]:
    """Return the number of rows and columns of the graph block tables."""
    tables = runner.graph_block_tables
    if not isinstance(tables, np.ndarray):
        got = type(tables).__name__
        raise TypeError(f"{operation}: graph_block_tables is {got}, expected numpy.ndarray")
    if tables.ndim != 2 or tables.dtype != np.int32:
        got = f"{tables.dtype} of shape {tables.shape}"
        raise MetadataError(operation, "graph_block_tables", got, "2-D int32")
    return tables.shape[0], tables.shape[1]


def check_ids(tables: Sequence[Sequence[int]]) -> None:
    """Require block ids that fit int32: Python or numpy integers."""
    for table in tables:
        for block in table:
            if check_block(BUILD, "block_tables", block) >= 1 << 31:
                raise MetadataError(BUILD, "block_tables", block, "ids below 2**31")
