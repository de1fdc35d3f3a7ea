"""The features of a case, each with its values: the cells of the grid."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from attnproof.harness.cases.coverage.view import View, view_of
from attnproof.harness.model.case import Case

Values = Iterable[int]
"""Indices of the values that a case has: none if the operation has no such feature."""
_MOST_DRAFTED = 9
"""Query tokens up to which a request with context may be one token and its drafts."""
_NONE: tuple[int, ...] = ()


class Feature(NamedTuple):
    """A property of a case and its values; a case may have several, as its requests differ."""

    key: str
    title: str
    values: tuple[str, ...]
    of: Callable[[View], Values]


def _class(bounds: Sequence[int], number: int) -> tuple[int, ...]:
    """Return the index of the class of a number; `bounds` are the least numbers of classes 1…"""
    return (bisect_right(bounds, number),)


def _requests(view: View) -> Values:
    rows = view.query if view.query is not None else view.seq
    return _NONE if rows is None else _class((1, 2, 8, 32, 128), len(rows))


def _kinds(view: View) -> list[int]:
    """Return the kind of each request with tokens: 0 decode, 1 extend, 2 prefill."""
    if view.query is None or view.context is None:
        return []
    pairs = zip(view.query, view.context, strict=False)
    return [2 if not c else 0 if q == 1 else 1 for q, c in pairs if q]


def _mix(view: View) -> Values:
    if view.query is None or view.context is None:
        return _NONE
    present = set(_kinds(view))
    return (sum(1 << kind for kind in present),)


def _order(view: View) -> Values:
    decoding = [kind == 0 for kind in _kinds(view)]
    if not decoding:
        return _NONE
    if all(decoding) or not any(decoding):
        return (0,)
    return (1,) if all(a >= b for a, b in pairwise(decoding)) else (2,)


def _idle(view: View) -> Values:
    if view.query is None:
        return _NONE
    if all(view.query):
        return (0,)
    live = [row for row, length in enumerate(view.query) if length]
    inner = bool(live) and not all(view.query[: live[-1] + 1])
    last = not view.query[-1]
    return (*((1,) if last else ()), *((2,) if inner else ()))


def _longest_query(view: View) -> Values:
    return _class((1, 2, 16, 128, 512, 2048), max(view.query)) if view.query else _NONE


def _longest_context(view: View) -> Values:
    return _class((1, 16, 128, 1024, 8192, 2**17), max(view.context)) if view.context else _NONE


def _tokens(view: View) -> Values:
    return _NONE if view.query is None else _class((1, 16, 128, 512, 2048), sum(view.query))


def _lengths(view: View) -> Values:
    if not view.seq or len(view.seq) < 2:
        return _NONE
    return (int(min(view.seq) != max(view.seq)),)


def _short_extends(view: View) -> Values:
    if view.query is None or view.context is None:
        return _NONE
    pairs = zip(view.query, view.context, strict=False)
    lengths = {q for q, c in pairs if c and 1 < q <= _MOST_DRAFTED}
    return (min(len(lengths), 2),)


def _block_size(view: View) -> Values:
    size = view.block_size
    if size is None:
        return _NONE
    return (6,) if size & (size - 1) else _class((2, 16, 32, 128, 512), size)


def _context_end(view: View) -> Values:
    if not view.block_size or not view.context:
        return _NONE
    return _places({c % view.block_size for c in view.context if c}, view.block_size)


def _seq_end(view: View) -> Values:
    if not view.block_size or not view.seq:
        return _NONE
    return _places({length % view.block_size for length in view.seq if length}, view.block_size)


def _places(rests: set[int], size: int) -> list[int]:
    """Return the places of lengths: 0 at an edge, 1 before, 2 behind, 3 elsewhere."""
    named = {0: 0, 1 % size: 2, size - 1: 1}
    named[0] = 0  # the only rest of size 1
    return sorted({named.get(rest, 3) for rest in rests})


def _spanned(view: View, size: int | None) -> Values:
    if not size or view.query is None or view.context is None:
        return _NONE
    pairs = zip(view.query, view.context, strict=False)
    most = max(((q + c - 1) // size - c // size for q, c in pairs if q), default=None)
    return _NONE if most is None else (min(most, 2),)


def _blocks_spanned(view: View) -> Values:
    return _spanned(view, view.block_size)


def _chunk(view: View) -> int | None:
    size = view.params.get("attn_chunk_size")
    return size if isinstance(size, int) and size > 0 else None


def _chunks_spanned(view: View) -> Values:
    return _spanned(view, _chunk(view))


def _chunk_end(view: View) -> Values:
    size = _chunk(view)
    if not size or not view.seq:
        return _NONE
    return _places({length % size for length in view.seq if length}, size)


def _window(view: View) -> Values:
    params = view.params
    name = "window" if "window" in params else "sliding_window"
    if name not in params or not view.seq:
        return _NONE
    size = params[name]
    if not isinstance(size, int) or size <= 0:
        return (0,)
    starts = [length - size for length in view.seq if length > size]
    if not starts:
        return (1,)
    if not view.block_size:
        return (3,)
    return sorted({2 if start % view.block_size == 0 else 3 for start in starts})


def _widest(view: View) -> Values:
    if view.batch is None or not view.batch.blocks:
        return _NONE
    return _class((1, 2, 16, 128), max(map(len, view.batch.blocks)))


def _sharing(view: View) -> Values:
    if view.batch is None:
        return _NONE
    rows = [blocks for blocks in view.batch.blocks if blocks]
    if len(rows) < 2:
        return _NONE
    first = [blocks[0] for blocks in rows]
    distinct = len(set(first))
    null = any(len(blocks) > 1 and blocks[0] == blocks[1] for blocks in rows)
    shared = 0 if distinct == len(rows) else 2 if distinct == 1 else 1
    return (shared, 3) if null else (shared,)


def _block_order(view: View) -> Values:
    if view.batch is None:
        return _NONE
    # Both ends of each row tell an order that strategies and engines make from another.
    ends = [end for blocks in view.batch.blocks if blocks for end in (blocks[0], blocks[-1])]
    if len(ends) <= 2 and ends[:1] == ends[1:]:
        return _NONE
    return (int(any(a > b for a, b in pairwise(ends))),)


def _block_ids(view: View) -> Values:
    if view.batch is None:
        return _NONE
    ends = [end for blocks in view.batch.blocks if blocks for end in (blocks[0], blocks[-1])]
    return _class((2**16, 2**24, 2**31 - 2**16), max(ends)) if ends else _NONE


def _padded_rows(view: View) -> Values:
    return _NONE if view.batch is None else _class((1, 2, 8), view.batch.padded_requests)


def _padded_tokens(view: View) -> Values:
    return _NONE if view.batch is None else _class((1, 8), view.batch.padded_tokens)


def _spare_columns(view: View) -> Values:
    return _NONE if view.batch is None else _class((1, 2), view.batch.spare_columns)


def _spare_slots(view: View) -> Values:
    return _NONE if view.batch is None else _class((1,), view.batch.spare_slots)


_DTYPES = ("int32", "int64", "int64 offsets", "int64 lengths", "int64 computed", "int64 table")


def _dtype(view: View) -> Values:
    if view.batch is not None:
        return (_DTYPES.index(view.batch.dtype),)
    wide = view.params.get("wide")
    return (int(wide),) if isinstance(wide, bool) else _NONE


def _strides(view: View) -> Values:
    strided = view.batch.strided if view.batch else view.params.get("strided")
    return (int(strided),) if isinstance(strided, bool) else _NONE


def _bounds(view: View) -> Values:
    if view.batch is None:
        return _NONE
    return (bool(view.batch.query_slack) + 2 * bool(view.batch.seq_slack),)


def _logits(view: View) -> Values:
    if view.batch is None:
        return _NONE
    indices = view.batch.logits_indices
    if indices is None:
        return (0,)
    if not indices:
        return (1,)
    last = {end - 1 for end in accumulate(view.batch.query_lens)}
    kind = 2 if set(indices) <= last else 3
    return (kind, 4) if view.batch.logits_padding else (kind,)


def _fields(view: View) -> Values:
    batch = view.batch
    if batch is None:
        return _NONE
    added = (
        batch.subclassed,
        batch.later,
        batch.encoder_seq_lens is not None,
        batch.dcp_local_seq_lens is not None,
        not batch.causal,
        batch.num_logits is not None,
    )
    return [index for index, present in enumerate(added, 1) if present] or (0,)


def _ranks(view: View) -> Values:
    params = view.params
    size = params.get("cp_size", params.get("size") if "interleave" in params else None)
    return _class((2, 4, 8), size) if isinstance(size, int) else _NONE


def _rank(view: View) -> Values:
    params = view.params
    size, rank = (
        params.get("cp_size", params.get("size")),
        params.get("rank", params.get("cp_rank")),
    )
    if not isinstance(size, int) or not isinstance(rank, int):
        return _NONE
    return (0,) if rank == 0 else (2,) if rank == size - 1 else (1,)


def _heads(view: View) -> Values:
    group = view.params.get("group")
    return _class((2, 8), group) if isinstance(group, int) else _NONE


def _groups(view: View) -> Values:
    groups = view.params.get("groups")
    return _class((2, 3), len(groups)) if isinstance(groups, list) else _NONE


def _steps(view: View) -> Values:
    steps = view.params.get("steps")
    return _class((4, 16), len(steps)) if isinstance(steps, list) else _NONE


_SIX = ("0", "1", "2 to 7", "8 to 31", "32 to 127", "128 or more")
_QUERY = ("0", "1", "2 to 15", "16 to 127", "128 to 511", "512 to 2,047", "2,048 or more")
_CONTEXT = ("0", "1 to 15", "16 to 127", "128 to 1,023", "1,024 to 8,191", "8,192 to 131,071")
_TOKENS = ("0", "1 to 15", "16 to 127", "128 to 511", "512 to 2,047", "2,048 or more")
_MIX = (
    *("no token", "decodes", "extends", "decodes, extends", "prefills"),
    *("decodes, prefills", "extends, prefills", "all three"),
)
_EDGE = ("at an edge", "one before", "one behind", "elsewhere")
_SPAN = ("one", "two", "three or more")
_BLOCK_SIZES = ("1", "2 to 8", "16", "32 or 64", "128 or 256", "512 or more", "no power of 2")
_IDS = ("below 2^16", "below 2^24", "below 2^31 - 2^16", "up to 2^31 - 1")
_LOGITS = ("none given", "empty", "last tokens", "other tokens", "with stale entries")
_FIELDS = (
    *("none", "a subclass", "later engines", "encoder lengths"),
    *("lengths of a rank", "not causal", "number of logits"),
)
_SHARING = ("none", "some", "all", "a null block twice")

FEATURES: tuple[Feature, ...] = (
    Feature("requests", "requests", _SIX, _requests),
    Feature("mix", "kinds of requests", _MIX, _mix),
    Feature("order", "place of decodes", ("not mixed", "first", "behind others"), _order),
    Feature("idle", "requests without tokens", ("none", "last", "before others"), _idle),
    Feature("query", "longest query", _QUERY, _longest_query),
    Feature("context", "longest context", (*_CONTEXT, "131,072 or more"), _longest_context),
    Feature("tokens", "query tokens", _TOKENS, _tokens),
    Feature("lengths", "sequence lengths", ("equal", "different"), _lengths),
    Feature("drafts", "short extends", ("none", "of one length", "of several"), _short_extends),
    Feature("block_size", "block size", _BLOCK_SIZES, _block_size),
    Feature("context_end", "context ends in a block", _EDGE, _context_end),
    Feature("seq_end", "sequence ends in a block", _EDGE, _seq_end),
    Feature("spanned", "blocks of a query", _SPAN, _blocks_spanned),
    Feature(
        "widest", "blocks of a sequence", ("0", "1", "2 to 15", "16 to 127", "128 or more"), _widest
    ),
    Feature("sharing", "shared first block", _SHARING, _sharing),
    Feature("block_order", "block order", ("ascending", "another"), _block_order),
    Feature("block_ids", "block ids", _IDS, _block_ids),
    Feature("chunk_end", "sequence ends in a chunk", _EDGE, _chunk_end),
    Feature("chunks", "chunks of a query", _SPAN, _chunks_spanned),
    Feature(
        "window", "window", ("none", "not reached", "starts at a block", "in a block"), _window
    ),
    Feature("padded_rows", "padded rows", ("0", "1", "2 to 7", "8 or more"), _padded_rows),
    Feature("padded_tokens", "padded tokens", ("0", "1 to 7", "8 or more"), _padded_tokens),
    Feature("columns", "stale columns", ("0", "1", "2 or more"), _spare_columns),
    Feature("slots", "stale slots", ("0", "1 or more"), _spare_slots),
    Feature("dtype", "dtype of lengths", _DTYPES, _dtype),
    Feature("strides", "strides", ("contiguous", "with gaps"), _strides),
    Feature("bounds", "bounds above the longest", ("none", "query", "sequence", "both"), _bounds),
    Feature("logits", "logits indices", _LOGITS, _logits),
    Feature("fields", "other fields", _FIELDS, _fields),
    Feature("ranks", "ranks", ("1", "2 or 3", "4 to 7", "8 or more"), _ranks),
    Feature("rank", "rank", ("first", "between", "last"), _rank),
    Feature("heads", "query heads of a KV head", ("1", "2 to 7", "8 or more"), _heads),
    Feature("groups", "cache groups", ("1", "2", "3 or more"), _groups),
    Feature("steps", "steps of a sequence", ("up to 3", "4 to 15", "16 or more"), _steps),
)
STARTS: tuple[int, ...] = tuple(accumulate((len(f.values) for f in FEATURES), initial=0))
"""Number of the first cell of each feature, and the number of all cells."""


def cells_of(case: Case) -> int:
    """Return the cells that a case fills, bit n for cell n."""
    view, cells = view_of(case), 0
    for feature, start in zip(FEATURES, STARTS, strict=False):
        for value in feature.of(view):
            cells |= 1 << start + value
    return cells
