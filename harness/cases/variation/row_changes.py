"""Changes of a case's rows: their number, queries and contexts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product

from msgspec.structs import replace

from attnproof.harness.cases.magnitudes import (
    BLOCK_SIZES,
    FAR_POSITIONS,
    FLOAT_LIMITS,
    FULL,
    LARGE,
    NUMBERS,
    ROUNDED_SIZES,
    UNEVEN_SIZES,
    critical,
    near,
)
from attnproof.harness.cases.variation.change import Change, change_alone
from attnproof.harness.cases.variation.rows import (
    Row,
    behind_decodes,
    repeated,
    rows_of,
    uneven,
    with_all_rows,
    with_blocks,
    with_numbered_rows,
    with_row,
    with_rows,
)
from attnproof.harness.model.case import Case

_QUERIES = (0, 1, 2, 3, 9, 15, 16, 17, 33, 65, 129, 257, 513, 600, 1025)
_LARGE_QUERIES = (
    *((LARGE[1], 48), (LARGE[2], 16), (LARGE[2], 528), (LARGE[1], 3), (LARGE[0], 1)),
    *((2**15 + 5, 528), (2**16 + 1, 64), (2**13, 48)),
)
"""Query tokens and block sizes: more than a tile, which the size divides or not, than int16, or
exactly some tiles of any size."""
_MANY_BLOCKS = 2**16 + 3
"""Blocks of a sequence: more than uint16 counts."""
_RUNS = ((1, 33), (16, 32), (32, 64), (64, 128), (128, 256))
"""First row and the end of runs of equal rows."""
_LARGE = (2**20 + 7, 2**25 + 3, 2**28 + 5)
"""Lengths well beyond a limit, so that all query tokens are beyond it."""
_MOST_TOKENS = 2**31 - 1
_Numbers = Callable[[int], Sequence[int]]
"""Function from the number of rows to a number of query or computed tokens for each."""
_PATTERNS: dict[str, _Numbers] = {
    "rising": lambda count: [1 + i % 40 for i in range(count)],
    "falling": lambda count: [40 - i % 40 for i in range(count)],
    "alternating": lambda count: [1 + 4 * (i % 2) for i in range(count)],
}


def large_changes() -> Iterator[Change]:
    """Yield numbers of rows and of query tokens beyond all tiles of a kernel."""
    yield change_alone("rows", f"{LARGE[0]} rows", repeated(LARGE[0]))
    for query, size in _LARGE_QUERIES:
        for place, row in (("first", 0), ("last", -1)):
            name = f"{place} query of {query} in blocks of {size}"
            yield change_alone(
                f"{place} query", name, _in_blocks(size, with_row(row, _query(query)))
            )
    for size in (BLOCK_SIZES[-1], 528):
        inside = _in_blocks(size, with_row(-1, _inside_a_block))
        yield change_alone("last query", f"last query inside a block of {size}", inside)
    for size in ROUNDED_SIZES:
        across = _in_blocks(size, with_row(-1, lambda _, size: (4 * size + 3, size - 1)))
        yield change_alone("last query", f"last query across blocks of {size}", across)
    yield change_alone("last sequence", f"{_MANY_BLOCKS} blocks of the last row", _many_blocks)


def _many_blocks(case: Case) -> Case | None:
    """Return the case with very many blocks of one token in its last row."""
    batch = case.batch
    if batch is None or not batch.num_requests or batch.no_slots:
        return None
    computed = (*batch.computed_lens[:-1], _MANY_BLOCKS - batch.query_lens[-1])
    grown = with_blocks(replace(batch, block_size=1, computed_lens=computed))
    return None if grown is None else replace(case, batch=grown)


def _in_blocks(size: int, change: Callable[[Case], Case | None]) -> Callable[[Case], Case | None]:
    """Return the change of a case after that of its block size, if it has blocks."""

    def apply(case: Case) -> Case | None:
        batch = case.batch
        if batch is None or batch.no_slots:
            return change(case)
        resized = with_blocks(replace(batch, block_size=size))
        return change(case if resized is None else replace(case, batch=resized))

    return apply


def row_changes() -> Iterator[Change]:
    """Yield the changes of the rows and their queries."""
    for count in (1, 2, *NUMBERS, *FULL):
        yield change_alone("rows", f"{count} rows", repeated(count))
    for count in (511, 512, 513):
        yield Change("rows", f"{count} decodes before", "decodes before", behind_decodes(count))
    for start, stop in _RUNS:
        for place, row in (("first", 0), ("last", -1)):
            name = f"rows {start} to {stop - 1} as the {place} one"
            yield Change("run of rows", name, f"a run of the {place} row", _run(start, stop, row))
    for query in _QUERIES:
        for place, row in (("first", 0), ("last", -1)):
            name = f"{place} query of {query}"
            yield Change(
                f"{place} query",
                name,
                f"{place} query near {near(query)}",
                with_row(row, _query(query)),
            )
    for place, row in (("first", 0), ("last", -1)):
        inside = with_row(row, _inside_a_block)
        yield change_alone(f"{place} query", f"{place} query inside a block", inside)
    for name, numbers in (*_even(1, 2, 3, 5), *_PATTERNS.items()):
        of_queries = with_numbered_rows(numbers, _with_query)
        yield change_alone("queries", f"queries {name}", of_queries)
    unequal = with_all_rows(lambda i, row: (1 + (i * i) % 5, row[1]))
    yield change_alone("queries", "unequal queries", unequal)
    decodes = with_all_rows(lambda i, row: (1, row[1] + i))
    yield change_alone("queries", "decodes of unequal contexts", decodes)
    no_context = with_all_rows(lambda _, row: (row[0] or 1, 0))
    yield change_alone("queries", "no computed tokens", no_context)


def _even(*numbers: int) -> Iterator[tuple[str, _Numbers]]:
    """Yield numbers of rows that are equal, and that are equal on average only."""
    for number in numbers:
        yield f"of {number}", partial(_equal, number)
        if number > 1:
            yield f"of {number} on average", partial(uneven, number)


def _equal(number: int, count: int) -> list[int]:
    return [number] * count


def _with_query(row: Row, query: int) -> Row:
    return query, row[1]


def _with_context(row: Row, context: int) -> Row:
    return row[0], context


def _run(start: int, stop: int, row: int) -> Callable[[Case], Case | None]:
    """Return the change of a run of rows, of which a kernel may make a tile, to one of the rows.

    Other rows lie before and behind the run.
    """

    def apply(case: Case) -> Case | None:
        longer = case if case.num_requests > stop else repeated(stop + 5)(case)
        if longer is None or longer.batch is None:
            return None
        tile_row = rows_of(longer.batch)[row]
        return with_all_rows(lambda i, other: tile_row if start <= i < stop else other)(longer)

    return apply


def _query(query: int) -> Callable[[Row, int], Row]:
    return lambda row, _: (query, row[1])


def _inside_a_block(_row: Row, size: int) -> Row:
    """Return a query of half a block, which begins and ends inside of it."""
    return max(1, size // 2), size // 4


def context_changes() -> Iterator[Change]:
    """Yield the changes of the lengths of sequences."""
    for name, numbers in (*_even(7, 16, 48), *_PATTERNS.items()):
        of_contexts = with_numbered_rows(numbers, _with_context)
        yield change_alone("contexts", f"contexts {name}", of_contexts)
    shared = "blocks that the first row fills in the step"
    yield change_alone("contexts", shared, _filled_in_the_step)
    for magnitude in (*critical(0, _MOST_TOKENS), *_LARGE):
        for place, row in (("first", 0), ("last", -1)):
            if magnitude < 2**24 or place == "last":
                name = f"{place} sequence of {magnitude}"
                group = f"{place} sequence near {near(magnitude)}"
                yield Change(f"{place} sequence", name, group, with_row(row, _ending(magnitude)))
    for limit in FLOAT_LIMITS:
        for edge in (-1, 0, 1):
            name = f"last sequence ends at a block beyond {limit} {edge:+d}"
            ending = with_row(-1, _ending_beyond(limit, edge))
            yield change_alone("last sequence", name, ending)
    for size, limit in product(UNEVEN_SIZES, FAR_POSITIONS):
        group = f"last sequence ends at a block of {size} near {near(limit)}"
        for edge in (-1, 0, 1):
            ending = _in_blocks(size, with_row(-1, _ending_beyond(limit, edge)))
            yield Change("last sequence", f"{group} {edge:+d}", group, ending)
    for blocks in (1, 2, 4):
        for edge in (-1, 0, 1):
            for place, row in (("first", 0), ("last", -1)):
                where = f"{blocks} blocks {edge:+d}"
                starts = with_row(row, _starting_at(blocks, edge))
                name = f"{place} query starts at {where}"
                yield Change(f"{place} sequence", name, f"{place} query starts at a block", starts)
                ends = with_row(row, _ending_at(blocks, edge))
                name = f"{place} sequence ends at {where}"
                yield Change(f"{place} sequence", name, f"{place} sequence ends at a block", ends)


def _filled_in_the_step(case: Case) -> Case | None:
    """Return the case with the whole blocks of the first row as the others' contexts.

    The first row computes some of them in this step, as with a prefix that two prompts share.
    """
    batch = case.batch
    if batch is None or batch.num_requests < 2 or batch.no_slots:
        return None
    rows, size = rows_of(batch), batch.block_size
    query, computed = max(rows[0][0], size), rows[0][1]
    context = (computed + query) // size * size
    changed = with_rows(case, [(query, computed), *((row[0], context) for row in rows[1:])])
    if changed is None or changed.batch is None or changed.batch.block_size != size:
        return None
    first, *others = changed.batch.blocks
    shared = first[: context // size]
    blocks = (first, *((*shared, *row[len(shared) :]) for row in others))
    return replace(changed, batch=replace(changed.batch, blocks=blocks))


def _ending_beyond(limit: int, edge: int) -> Callable[[Row, int], Row]:
    def ending(row: Row, size: int) -> Row:
        return row[0], max(0, (limit // size + 3) * size + edge - row[0])

    return ending


def _ending(length: int) -> Callable[[Row, int], Row]:
    return lambda row, _: (row[0], max(0, length - row[0]))


def _starting_at(blocks: int, edge: int) -> Callable[[Row, int], Row]:
    return lambda row, size: (row[0], max(0, blocks * size + edge))


def _ending_at(blocks: int, edge: int) -> Callable[[Row, int], Row]:
    return lambda row, size: (row[0], max(0, blocks * size + edge - row[0]))
