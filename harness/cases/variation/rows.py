"""Requests of a case: chosen, repeated and given other lengths, with all that follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from attnproof.harness.cases.batches.strategies import block_lists
from attnproof.harness.model.case import Batch, Case

Row = tuple[int, int]
"""Query tokens and computed tokens of a request."""
_MOST_BLOCKS = 1 << 17
"""Maximal number of blocks of a batch that is changed."""
_FEW_COLUMNS = 2048
_LARGEST_BLOCK = 2**16


def rows_of(batch: Batch) -> list[Row]:
    """Return the rows of the batch, without padded ones."""
    return list(zip(batch.query_lens, batch.computed_lens, strict=True))


def cycle(values: Sequence[int], count: int) -> list[int]:
    """Return `count` values that repeat the given ones after an odd number of them.

    No power of two is a period then: the tiles of a kernel get different values.
    """
    odd = [*values, *values[: 1 - len(values) % 2]]
    return [odd[i % len(odd)] for i in range(count)]


def with_row(row: int, change: Callable[[Row, int], Row]) -> Callable[[Case], Case | None]:
    """Return the change of one row, counted from the end if negative.

    `change` has the row and the block size, which is larger if a context has very many blocks.
    """

    def apply(case: Case) -> Case | None:
        batch = case.batch
        if batch is None or not batch.num_requests or batch.no_slots:
            return None
        rows, size = rows_of(batch), batch.block_size
        old_row = rows[row]
        while True:
            rows[row] = change(old_row, size)
            changed = with_rows(case, rows)
            if changed is None or changed.batch is None or changed.batch.block_size <= size:
                return changed
            size = changed.batch.block_size  # the edge moves with the blocks, which may grow again

    return apply


def with_all_rows(change: Callable[[int, Row], Row]) -> Callable[[Case], Case | None]:
    """Return the change of every row; `change` has the row's index and the row."""

    def apply(case: Case) -> Case | None:
        batch = case.batch
        if batch is None or not batch.num_requests or batch.no_slots:
            return None
        return with_rows(case, [change(i, row) for i, row in enumerate(rows_of(batch))])

    return apply


def with_numbered_rows(
    numbers: Callable[[int], Sequence[int]], change: Callable[[Row, int], Row]
) -> Callable[[Case], Case | None]:
    """Return the change of every row by a number; `numbers` returns those of a number of rows."""

    def apply(case: Case) -> Case | None:
        batch = case.batch
        if batch is None or not batch.num_requests or batch.no_slots:
            return None
        pairs = zip(rows_of(batch), numbers(batch.num_requests), strict=True)
        return with_rows(case, [change(row, number) for row, number in pairs])

    return apply


def uneven(number: int, count: int) -> list[int]:
    """Return `count` numbers that are equal on average: some have one more, the next one less."""
    values = [number] * count
    for i in range(1, count - 1, 4):
        values[i] += 1
        values[i + 1] -= 1
    return values


def repeated(count: int) -> Callable[[Case], Case | None]:
    """Return the change to `count` rows, which repeat those of the case (`cycle`)."""

    def apply(case: Case) -> Case | None:
        batch = case.batch
        if batch is None or not batch.num_requests or batch.no_slots:
            return None
        source = cycle(range(batch.num_requests), count)
        rows = rows_of(batch)
        return with_rows(case, [rows[i] for i in source], source)

    return apply


def behind_decodes(count: int) -> Callable[[Case], Case | None]:
    """Return the change that puts `count` decodes before the rows of the case."""

    def apply(case: Case) -> Case | None:
        batch = case.batch
        if batch is None or not batch.num_requests or batch.no_slots:
            return None
        source = [0] * count + list(range(batch.num_requests))
        decodes = [(1, i % (batch.block_size + 2)) for i in range(count)]
        return with_rows(case, [*decodes, *rows_of(batch)], source)

    return apply


def with_rows(case: Case, rows: Sequence[Row], source: Sequence[int] | None = None) -> Case | None:
    """Return the case with other rows; `source` is the earlier row of each, the same by default.

    Blocks get new ids from the lowest one on, unless they cannot be told: then the ids rise.
    A context of very many blocks gets larger blocks; returns None if there are too many of them.
    """
    batch = case.batch
    assert batch is not None
    source = range(len(rows)) if source is None else source
    queries, computed = tuple(q for q, _ in rows), tuple(c for _, c in rows)
    tokens = sum(queries) + batch.padded_tokens
    fields: dict[str, Any] = {"query_lens": queries, "computed_lens": computed}
    longest = max((q + c for q, c in rows), default=0)
    size = batch.block_size
    while longest // size > _FEW_COLUMNS and size * 2 <= _LARGEST_BLOCK:
        size *= 2
    if batch.logits_indices is not None:
        fields["logits_indices"] = tuple(i for i in batch.logits_indices if i < tokens)
    for name in ("encoder_seq_lens", "dcp_local_seq_lens", "prompt_lens"):
        values = getattr(batch, name)
        if values is not None:
            padded = () if name == "prompt_lens" else values[batch.num_requests :]
            fields[name] = (*(values[i] for i in source), *padded)
    params = {
        name: _of_rows(value, batch.num_requests, source) for name, value in case.params.items()
    }
    changed = replace(batch, block_size=size, **fields)
    first = min((block for row in batch.blocks for block in row), default=0)
    batch = with_blocks(changed, first=first)
    return None if batch is None else replace(case, batch=batch, params=params)


def with_blocks(batch: Batch, *, first: int = 0, **how: Any) -> Batch | None:
    """Return the batch with the blocks that `block_lists` makes for its rows.

    Returns None if they are very many: contexts without blocks have up to 2^32 tokens.
    """
    seq_lens = [q + c for q, c in rows_of(batch)]
    live = sum(-(-length // batch.block_size) for length in seq_lens)
    if live > _MOST_BLOCKS:
        return None
    first = max(0, min(first, 2**31 - live))
    blocks = block_lists(seq_lens, list(batch.computed_lens), batch.block_size, first=first, **how)
    return replace(batch, blocks=blocks)


def _of_rows(value: Any, count: int, source: Sequence[int]) -> Any:
    """Return a list of one entry a row for the new rows, any other value as it is."""
    if not isinstance(value, list) or len(value) < count or not count:
        return value
    if any(isinstance(entry, list) for entry in value):
        return value
    return [*(value[i] for i in source), *value[count:]]
