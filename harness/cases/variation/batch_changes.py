"""Changes of a case's batch: rows, contexts, blocks, padding, layout and optional fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from typing import Any

from msgspec.structs import replace

from attnproof.harness.cases.batches.strategies import BLOCK_ORDERS
from attnproof.harness.cases.magnitudes import BLOCK_SIZES, first_blocks
from attnproof.harness.cases.variation.change import Change, change_alone
from attnproof.harness.cases.variation.row_changes import context_changes, row_changes
from attnproof.harness.cases.variation.rows import rows_of, with_blocks
from attnproof.harness.model.case import Batch, Case

_DTYPES = ("int32", "int64", "int64 offsets", "int64 lengths", "int64 computed", "int64 table")


def batch_changes() -> Iterator[Change]:
    """Yield the changes of a batch, in the order in which they are applied."""
    yield from row_changes()
    yield from context_changes()
    yield from block_changes()
    yield from layout_changes()
    yield from optional_changes()


def block_changes() -> Iterator[Change]:
    """Yield the changes of block sizes and ids."""
    for size in BLOCK_SIZES:
        yield _of_batch("block size", f"blocks of {size}", _sized(size))
    for order in BLOCK_ORDERS[1:]:
        yield _of_batch("order", f"blocks {order}", partial(with_blocks, order=order))
    yield _of_batch("order", "shared blocks", lambda b: with_blocks(b, shared=True))
    yield _of_batch("order", "equal rows of shared blocks", _all_shared)
    for place in range(len(first_blocks(16))):
        yield _of_batch("block ids", f"block ids of magnitude {place}", _first_block(place))


def _sized(size: int) -> Callable[[Batch], Batch | None]:
    return lambda batch: with_blocks(replace(batch, block_size=size))


def _first_block(place: int) -> Callable[[Batch], Batch]:
    def change(batch: Batch) -> Batch:
        firsts = first_blocks(batch.block_size)
        first = firsts[min(place, len(firsts) - 1)]
        ids = {block for row in batch.blocks for block in row}
        low, high = min(ids, default=0), max(ids, default=0)
        # The ids cross the magnitude in the middle of the batch, as far apart as before.
        start = max(0, min(first - (high - low) // 2, 2**31 - 1 - (high - low)))
        new = {block: start + block - low for block in ids}
        return replace(batch, blocks=tuple(tuple(new[b] for b in row) for row in batch.blocks))

    return change


def _all_shared(batch: Batch) -> Batch | None:
    """Return the batch with the second row's context equal to the first row's, in its blocks."""
    rows = rows_of(batch)
    if len(rows) < 2:
        return None
    computed = (rows[0][1], rows[0][1], *batch.computed_lens[2:])
    return with_blocks(replace(batch, computed_lens=computed), shared=True)


def layout_changes() -> Iterator[Change]:
    """Yield the changes of padding, spare entries, bounds, dtypes and strides."""
    for rows in (0, 1, 3, 33):
        yield _of_batch("padded rows", f"{rows} padded rows", _padded_rows(rows))
    for name, feature, values in (
        ("padded_tokens", "padded tokens", (0, 1, 5, 16, 129, 1030)),
        ("spare_columns", "spare columns", (0, 1, 5, 33, 1030)),
        ("spare_slots", "spare slots", (0, 1, 64, 1030)),
        ("query_slack", "query slack", (0, 1, 7, 1024)),
        ("seq_slack", "sequence slack", (0, 1, 7, 1024)),
        ("dtype", "dtype", _DTYPES),
        ("strided", "layout", (False, True)),
    ):
        for value in values:
            yield _of_batch(feature, f"{feature} {value}", _with({name: value}))
    yield _of_batch("padded tokens", "tokens padded to equal queries", _padded_to_longest)


def _padded_to_longest(batch: Batch) -> Batch:
    """Return the batch with as many tokens as if each query were as long as the longest one."""
    longest = max(batch.query_lens, default=0)
    missing = batch.num_requests * longest - sum(batch.query_lens)
    return replace(batch, padded_tokens=missing)


def _padded_rows(rows: int) -> Callable[[Batch], Batch]:
    def change(batch: Batch) -> Batch:
        fields: dict[str, Any] = {"padded_requests": rows}
        for name in ("encoder_seq_lens", "dcp_local_seq_lens"):
            values = getattr(batch, name)
            if values is not None:
                fields[name] = (*values[: batch.num_requests], *[0] * rows)
        return replace(batch, **fields)

    return change


def optional_changes() -> Iterator[Change]:
    """Yield the changes of optional fields and of the class."""
    yield _of_batch("causal", "not causal", _with({"causal": False}))
    for name, change in (
        ("no logits", _with({"logits_indices": None, "logits_padding": 0, "num_logits": None})),
        ("counted logits", lambda b: replace(b, logits_indices=None, num_logits=b.num_requests)),
        ("logits of last tokens", lambda b: _logits(b, _last_tokens(b))),
        ("logits of first tokens", lambda b: _logits(b, _first_tokens(b))),
        ("logits of all tokens", lambda b: _logits(b, set(range(b.num_tokens)))),
        ("logits of one row", lambda b: _logits(b, set(range(b.num_tokens)[-1:]))),
    ):
        yield _of_batch("logits", name, change)
    for name, order in (
        ("falling", lambda indices: indices[::-1]),
        ("rotated", lambda indices: (*indices[1:], indices[0])),
        ("with one twice", lambda indices: (indices[-1], *indices)),
        ("of one token", lambda indices: indices[:1] * len(indices)),
    ):
        yield _of_batch("order of logits", f"logits {name}", partial(_ordered_logits, order=order))
    yield _of_batch("encoder", "encoder lengths", _with_encoder)
    yield _of_batch("ranks", "shares of a rank", _with_shares)
    no_class = {"subclassed": False, "later": False, "prompt_lens": None, "bound_slack": 0}
    yield _of_batch("class", "plain class", _with(no_class))
    yield _of_batch("class", "subclass", _with({**no_class, "subclassed": True}))
    for missing in (0, 1, 2):
        name = f"later engine, prompts {missing}"
        yield _of_batch("class", name, _later_engine(missing))


def _later_engine(missing: int) -> Callable[[Batch], Batch]:
    """Return the change to a later engine's batch; prompts end in some of the queries."""

    def change(batch: Batch) -> Batch:
        rows = enumerate(rows_of(batch))
        prompts = tuple(c + (q * ((i + missing) % 3)) // 2 for i, (q, c) in rows)
        slack = missing and 3
        return replace(batch, subclassed=False, later=True, prompt_lens=prompts, bound_slack=slack)

    return change


def _last_tokens(batch: Batch) -> set[int]:
    ends = accumulate(batch.query_lens)
    return {end - 1 for end, query in zip(ends, batch.query_lens, strict=True) if query}


def _first_tokens(batch: Batch) -> set[int]:
    ends = accumulate(batch.query_lens)
    return {end - query for end, query in zip(ends, batch.query_lens, strict=True) if query}


def _logits(batch: Batch, indices: set[int]) -> Batch | None:
    if not indices:
        return None
    chosen = tuple(sorted(indices))
    return replace(batch, logits_indices=chosen, num_logits=None, logits_padding=len(chosen) % 3)


def _ordered_logits(
    batch: Batch, order: Callable[[tuple[int, ...]], tuple[int, ...]]
) -> Batch | None:
    indices = batch.logits_indices
    return replace(batch, logits_indices=order(indices)) if indices else None


def _with_encoder(batch: Batch) -> Batch:
    rows = batch.num_requests + batch.padded_requests
    return replace(batch, encoder_seq_lens=tuple((7 * row) % 11 + 1 for row in range(rows)))


def _with_shares(batch: Batch) -> Batch:
    shares = [(q + c + 1) // 2 for q, c in rows_of(batch)]
    return replace(batch, dcp_local_seq_lens=(*shares, *[0] * batch.padded_requests))


def _with(fields: dict[str, Any]) -> Callable[[Batch], Batch]:
    return lambda batch: replace(batch, **fields)


def _of_batch(feature: str, name: str, change: Callable[[Batch], Batch | None]) -> Change:
    def apply(case: Case) -> Case | None:
        if case.batch is None or (case.batch.no_slots and feature in _OF_BLOCKS):
            return None
        batch = change(case.batch)
        return None if batch is None else replace(case, batch=batch)

    return change_alone(feature, name, apply)


_OF_BLOCKS = ("block size", "order", "block ids")
