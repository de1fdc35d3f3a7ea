"""Hypothesis strategies for consistent batches.

Only the decisions of an engine are drawn: the requests, their computed tokens and blocks,
padding and layout. Block tables follow from lengths, slots from block tables. Batches
shrink towards few requests, few tokens, ascending blocks and a plain layout.
"""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

from hypothesis import strategies as st

from attnproof.harness.model.case import Batch

BLOCK_SIZES = (2, 1, 4, 16, 3, 8, 32, 48, 64, 128, 256)
HIGHEST_BLOCK = 2**31 - 1

_LAYOUTS: tuple[dict[str, Any], ...] = (
    {},
    {"spare_columns": 1},
    {"padded_requests": 1},
    {"padded_tokens": 2},
    {"padded_requests": 2, "padded_tokens": 3, "spare_columns": 2, "spare_slots": 3},
    {"dtype": "int64"},
    {"dtype": "int64 offsets"},
    {"dtype": "int64 lengths"},
    {"dtype": "int64 computed"},
    {"dtype": "int64 table"},
    {"strided": True},
    {"query_slack": 1, "seq_slack": 7},
    {"dtype": "int64", "strided": True, "padded_requests": 1, "spare_columns": 3},
    {"strided": True, "padded_tokens": 5, "spare_slots": 1},
)
_KINDS = ("decode", "prefill", "mixed", "continued", "spec decode", "idle rows")


BLOCK_ORDERS = ("ascending", "descending", "shuffled", "with one elsewhere", "with gaps")


def block_lists(
    seq_lens: list[int],
    computed: list[int],
    block_size: int,
    *,
    first: int = 0,
    order: str = "ascending",
    shared: bool = False,
) -> tuple[tuple[int, ...], ...]:
    """Make the live blocks of each request, unique ids from `first` on.

    `order` is one of `BLOCK_ORDERS`: "shuffled" is the same for the same sizes; "with one
    elsewhere" is ascending but for a middle block of each request, whose first and last block
    are as far apart as in a run; "with gaps" leaves out every third id. With `shared` each
    request takes over the first request's leading blocks, as many as both have fully computed.
    """
    counts = [-(-length // block_size) for length in seq_lens]
    ids = list(range(first, first + sum(counts)))
    if order == "descending":
        ids.reverse()
    elif order == "shuffled":
        Random(len(ids)).shuffle(ids)
    elif order == "with gaps":
        ids = [block + (block - first) // 2 for block in ids]
    lists, taken = [], 0
    for row, count in enumerate(counts):
        lists.append(ids[taken : taken + count])
        taken += count
        if order == "with one elsewhere" and count > 2:
            lists[row][count // 2] = first + len(ids) + row
        if shared and row:
            full = min(computed[0], computed[row]) // block_size
            lists[row][:full] = lists[0][:full]
    return tuple(tuple(blocks) for blocks in lists)


def make_batch(query_lens: list[int], computed: list[int], block_size: int, **fields: Any) -> Batch:
    """Make a batch; `first`, `order` and `shared` go to `block_lists`, other fields to Batch."""
    seq_lens = [q + c for q, c in zip(query_lens, computed, strict=True)]
    blocks = {key: fields.pop(key) for key in ("first", "order", "shared") if key in fields}
    return Batch(
        block_size=block_size,
        query_lens=tuple(query_lens),
        computed_lens=tuple(computed),
        blocks=block_lists(seq_lens, computed, block_size, **blocks),
        **fields,
    )


# Strategies are built once: Hypothesis validates each new one, which costs more than a draw.
_BLOCK_SIZE = st.sampled_from(BLOCK_SIZES)
_KIND = st.sampled_from(_KINDS)
_LAYOUT = st.sampled_from(_LAYOUTS)
_ORDER = st.sampled_from((*BLOCK_ORDERS, "shared", "high"))
_EXTRAS_BITS = st.integers(0, 63)
_DRAW_OF_NONE = 15
"""The draw of a batch without requests, if there may be none."""
_EMPTINESS = st.integers(0, _DRAW_OF_NONE)


@cache
def batches(
    *, max_requests: int = 6, min_requests: int = 0, extras: bool = False
) -> st.SearchStrategy[Batch]:
    """Return a strategy for consistent batches; `extras` adds optional fields and a subclass."""
    return _batches(max_requests, min_requests, extras)


@st.composite
def _batches(draw: st.DrawFn, max_requests: int, min_requests: int, extras: bool) -> Batch:
    block_size = draw(_BLOCK_SIZE)
    # A list may be empty in one of four draws, of which there is one boundary.
    least = min_requests or int(draw(_EMPTINESS) < _DRAW_OF_NONE)
    rows = draw(_requests(draw(_KIND), block_size, least, max_requests))
    query_lens = [q for q, _ in rows]
    computed = [c for _, c in rows]
    layout = dict(draw(_LAYOUT))
    order = draw(_ORDER)
    if order == "high":
        live = sum(-(-(q + c) // block_size) for q, c in rows)
        layout["first"] = HIGHEST_BLOCK - live + 1
    elif order == "shared":
        layout["shared"] = True
    else:
        layout["order"] = order
    batch_rows = len(rows) + layout.get("padded_requests", 0)
    if extras:
        tokens = sum(query_lens) + layout.get("padded_tokens", 0)
        layout |= _extras(draw, tokens, query_lens, computed, batch_rows)
    return make_batch(query_lens, computed, block_size, **layout)


@cache
def _requests(
    kind: str, block_size: int, min_size: int, max_size: int
) -> st.SearchStrategy[list[tuple[int, int]]]:
    return st.lists(_request(kind, block_size), min_size=min_size, max_size=max_size)


def _request(kind: str, block_size: int) -> st.SearchStrategy[tuple[int, int]]:
    """Return a strategy for the query and computed tokens of one request."""
    some = st.integers(0, 40)
    edges = st.sampled_from([block_size - 1, block_size, block_size + 1, 2 * block_size])
    lengths = some | edges
    if kind == "decode":
        return st.tuples(st.just(1), lengths)
    if kind == "prefill":
        return st.tuples(st.integers(1, 40) | edges.filter(bool), st.just(0))
    if kind == "spec decode":
        return st.tuples(st.sampled_from((2, 2, 2, 3, 1)), lengths)
    if kind == "continued":
        return st.tuples(st.integers(1, 24), lengths)
    if kind == "idle rows":
        return st.tuples(st.sampled_from((0, 1, 2)), st.sampled_from((0, 0, 1, block_size)))
    return st.tuples(st.sampled_from((1, 1, 2, 5)) | lengths, lengths)


@cache
def token_sets(tokens: int) -> st.SearchStrategy[set[int]]:
    """Return a strategy for up to four token indices below `tokens`."""
    return st.sets(st.integers(0, tokens - 1), max_size=4)


def _extras(
    draw: st.DrawFn, tokens: int, query_lens: list[int], computed: list[int], rows: int
) -> dict[str, Any]:
    """Draw optional fields of a batch; each bit of one integer selects a group of fields."""
    fields: dict[str, Any] = {}
    which = draw(_EXTRAS_BITS)
    if which & 1:
        fields["causal"] = False
        fields["encoder_seq_lens"] = tuple(3 + 2 * row for row in range(rows))
    if which & 2 and tokens:
        indices = draw(token_sets(tokens))
        fields["logits_indices"] = tuple(sorted(indices))
        fields["logits_padding"] = 2
    if which & 4:
        seq_lens = [q + c for q, c in zip(query_lens, computed, strict=True)]
        share = [-(-length // 2) for length in seq_lens]
        fields["dcp_local_seq_lens"] = tuple(share + [0] * (rows - len(share)))
    if which & 32:
        fields["later"] = True
        fields["bound_slack"] = which % 3
        lengths = zip(query_lens, computed, strict=True)
        fields["prompt_lens"] = tuple(c + (q * row) % 3 for row, (q, c) in enumerate(lengths))
    elif which & 8:
        fields["subclassed"] = True
    if which & 16 and "logits_indices" not in fields:
        fields["num_logits"] = len(query_lens)
    return fields
