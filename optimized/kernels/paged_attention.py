"""Attention of tiles of queries over the paged cache; keys may be divided into parts.

Scores, sums and results are float32; the matrix units multiply in the dtype of the
queries. Exponentials have base 2, with log2(e) in the scale.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from .fp8 import from_fp8
from .versions import data_kernel


@data_kernel("query", "key_cache", "value_cache", "out", "partial", "lens_stride")
def attend_kernel(
    query,
    query_token,
    query_head,
    query_element,
    key_cache,
    key_block,
    key_slot,
    key_head,
    value_cache,
    value_block,
    value_slot,
    value_head,
    query_start_loc,
    starts_stride,
    seq_lens,
    lens_stride,
    table,
    table_row,
    table_column,
    k_scale,
    v_scale,
    out,
    out_token,
    out_head,
    out_element,
    partial,
    partial_sums,
    num_reqs,
    first_step,
    tiles_each,
    group,
    page,
    score_scale,
    soft_cap,
    window,
    head_words,
    ONE_EACH: tl.constexpr,
    PAGE_BITS: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    SPLIT: tl.constexpr,
    FULL: tl.constexpr,
    HEAD_TILE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    DENSE: tl.constexpr,
    ALIGNED: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Program (t, h, k): tile t of query rows, kv head h, part k of the keys they see.

    A row is one head of one query token; the heads that share kv head h are adjacent rows,
    so each key is loaded once for all of them. Programs take the tiles in reverse order:
    the last queries see most keys and start first. The first loop reads keys that all rows
    see and masks nothing; the second reads those at the edges of the causal triangle and
    of the window.

    Decodes are bound by memory, each key and value read once; prefills by the matrix
    units. With SPLIT, results are written to `partial` and the log2 of their sums to
    `partial_sums`, otherwise results to `out`. `page` is log2 of the block size (PAGE_BITS)
    or the block size itself. Strides of query, caches and out count ALIGNED elements, so
    that the compiler can prove their alignment and load whole words, as does the head size
    unless it is FULL, HEAD_TILE; with DENSE the elements of a head of query and out are adjacent.
    """
    size = HEAD_TILE if FULL else head_words * ALIGNED
    if DENSE:
        query_element, out_element = 1, 1
    kv_head = tl.program_id(1).to(tl.int64)
    request, tile = _request_of(
        query_start_loc, starts_stride, num_reqs, first_step, tiles_each, group, ROWS
    )
    if ONE_EACH:
        start = request
        queries = 1
    else:
        entry = query_start_loc + request * starts_stride
        start = tl.load(entry).to(tl.int32)
        queries = tl.load(entry + starts_stride).to(tl.int32) - start
    if tile * ROWS >= queries * group:
        return
    seq_len = tl.load(seq_lens + request * lens_stride).to(tl.int32)
    computed = seq_len - queries
    row = tile * ROWS + tl.arange(0, ROWS)
    token = row // group
    head = kv_head * group + (row - token * group)
    written = token < queries
    position = computed + token
    first_position = computed + tile * ROWS // group
    last_token = tl.minimum(queries - 1, (tile * ROWS + ROWS - 1) // group)
    last_position = computed + last_token

    element = tl.arange(0, HEAD_TILE)
    in_head = element < size
    place = (start + token).to(tl.int64)
    q_offset = (place * query_token + head * query_head) * ALIGNED
    q = tl.load(
        query + q_offset[:, None] + element[None, :] * query_element,
        mask=written[:, None] & in_head[None, :],
        other=0.0,
    )
    if WIDE:
        q = q.to(tl.float32)  # the interpreter cannot multiply bfloat16

    # The rows of the tile see keys [lowest, end), in tiles [first, stop); this part: [lo, hi).
    end = tl.maximum(last_position + 1, 0)
    lowest = tl.maximum(tl.maximum(first_position, 0) - window + 1, 0)
    first = lowest // KEYS
    stop = (end + KEYS - 1) // KEYS
    if SPLIT:
        parts = tl.num_programs(2)
        share = (tl.maximum(stop - first, 0) + parts - 1) // parts
        lo = first + tl.program_id(2) * share
        hi = tl.minimum(lo + share, stop)
    else:
        lo = first
        hi = stop
    # Tiles that every row sees in full: [full, full_stop).
    full = (tl.maximum(tl.maximum(last_position, 0) - window + 1, 0) + KEYS - 1) // KEYS
    full = tl.minimum(tl.maximum(full, lo), hi)
    full_stop = tl.minimum(tl.maximum((first_position + 1) // KEYS, full), hi)

    if key_cache.dtype.element_ty == tl.uint8:
        score_scale = score_scale * tl.load(k_scale)
    table_entry = table + request.to(tl.int64) * table_row
    k_head = kv_head * key_head
    v_head = kv_head * value_head
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.full([ROWS], 0.0, tl.float32)
    acc = tl.full([ROWS, HEAD_TILE], 0.0, tl.float32)
    lane = tl.arange(0, KEYS)

    for step in range(full, full_stop):
        key = step * KEYS + lane
        block, slot = _slots(key, key >= 0, table_entry, table_column, page, PAGE_BITS, False)
        k_rows = (k_head + block * key_block + slot * key_slot) * ALIGNED
        v_rows = (v_head + block * value_block + slot * value_slot) * ALIGNED
        k = _keys_or_values(key_cache, k_rows, key >= 0, q.dtype, size, HEAD_TILE, FULL, False)
        scores = _scores(q, k, score_scale, soft_cap, SOFT_CAP)
        higher = tl.maximum(top, tl.max(scores, 1))
        shrunk = tl.exp2(top - higher)
        weights = tl.exp2(scores - higher[:, None])
        total = total * shrunk + tl.sum(weights, 1)
        v = _keys_or_values(value_cache, v_rows, key >= 0, q.dtype, size, HEAD_TILE, FULL, False)
        acc = tl.dot(weights.to(q.dtype), v, acc * shrunk[:, None])
        top = higher

    before = full - lo
    for index in tl.range(before + hi - full_stop, num_stages=1):
        step = tl.where(index < before, lo + index, full_stop + index - before)
        key = step * KEYS + lane
        # Keys outside [lowest, end) are not loaded: they may be NaN, and 0 * NaN is NaN.
        kept = (key >= lowest) & (key < end)
        block, slot = _slots(key, kept, table_entry, table_column, page, PAGE_BITS, True)
        k_rows = (k_head + block * key_block + slot * key_slot) * ALIGNED
        v_rows = (v_head + block * value_block + slot * value_slot) * ALIGNED
        k = _keys_or_values(key_cache, k_rows, kept, q.dtype, size, HEAD_TILE, FULL, True)
        scores = _scores(q, k, score_scale, soft_cap, SOFT_CAP)
        behind = position[:, None] - key[None, :]
        seen = (behind >= 0) & (behind < window) & kept[None, :]
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        finite = tl.where(higher == float("-inf"), 0.0, higher)
        shrunk = tl.exp2(top - finite)
        weights = tl.exp2(scores - finite[:, None])
        total = total * shrunk + tl.sum(weights, 1)
        v = _keys_or_values(value_cache, v_rows, kept, q.dtype, size, HEAD_TILE, FULL, True)
        acc = tl.dot(weights.to(q.dtype), v, acc * shrunk[:, None])
        top = higher

    # `!= 0` and not `> 0`: NaN must stay NaN.
    sees_keys = total != 0
    acc = acc / tl.where(sees_keys, total, 1.0)[:, None]
    if value_cache.dtype.element_ty == tl.uint8:
        acc = acc * tl.load(v_scale)
    if SPLIT:
        heads = tl.num_programs(1) * group
        part = (place * heads + head) * tl.num_programs(2) + tl.program_id(2)
        sums = tl.where(sees_keys, top + tl.log2(tl.where(sees_keys, total, 1.0)), float("-inf"))
        tl.store(partial_sums + part, sums, mask=written)
        rows = partial + part[:, None] * size + element[None, :]
        tl.store(rows, acc, mask=written[:, None] & in_head[None, :] & (lo < hi))
    else:
        o_offset = (place * out_token + head * out_head) * ALIGNED
        rows = out + o_offset[:, None] + element[None, :] * out_element
        result = acc.to(out.dtype.element_ty)
        tl.store(rows, result, mask=written[:, None] & in_head[None, :])


@triton.jit
def _request_of(
    query_start_loc, starts_stride, num_reqs, first_step, tiles_each, group, ROWS: tl.constexpr
):
    """Return the request of this program and the program's tile within the request.

    The programs of request r start at `start * group // ROWS + r`, at least as many as its
    rows need. The request is the last one that starts at or before this program, found by
    bisection. If `first_step` is 0, each request has `tiles_each` programs instead.
    """
    number = tl.num_programs(0) - 1 - tl.program_id(0)
    request = tl.where(first_step > 0, 0, number // tiles_each)
    begin = (request * tiles_each).to(tl.int64)
    step = first_step
    while step > 0:
        probe = request + step
        exists = probe < num_reqs
        start = tl.load(query_start_loc + probe * starts_stride, mask=exists, other=0)
        probe_begin = start.to(tl.int64) * group // ROWS + probe
        reached = exists & (probe_begin <= number)
        request = tl.where(reached, probe, request)
        begin = tl.where(reached, probe_begin, begin)
        step = step // 2
    return request, (number - begin).to(tl.int32)


@triton.jit
def _slots(key, kept, table, stride, page, PAGE_BITS: tl.constexpr, MASKED: tl.constexpr):
    """Return the block of each key position and the offset within it, both int64."""
    if PAGE_BITS:
        column = key >> page
        offset = key & ((1 << page) - 1)
    else:
        column = key // page
        offset = key - column * page
    if MASKED:
        block = tl.load(table + column * stride, mask=kept, other=0)
    else:
        block = tl.load(table + column * stride)
    return block.to(tl.int64), offset.to(tl.int64)


@triton.jit
def _keys_or_values(
    base,
    rows,
    kept,
    dtype: tl.constexpr,
    size,
    HEAD_TILE: tl.constexpr,
    FULL: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Load (KEYS, HEAD_TILE) elements as `dtype`, 0 for keys and elements that are not kept."""
    element = tl.arange(0, HEAD_TILE)
    entries = base + rows[:, None] + element[None, :]
    fp8: tl.constexpr = base.dtype.element_ty == tl.uint8
    if MASKED:
        held = tl.load(entries, mask=kept[:, None] & (element < size)[None, :], other=0)
    elif not FULL:
        held = tl.load(entries, mask=(element < size)[None, :], other=0)
    else:
        held = tl.load(entries)
    if fp8:
        held = from_fp8(held)
    return held.to(dtype)


@triton.jit
def _scores(q, k, scale, soft_cap, SOFT_CAP: tl.constexpr):
    """Return (ROWS, KEYS) float32 scores for `exp2`; with a cap, `scale` is inside the tanh."""
    scores = tl.dot(q, tl.trans(k)) * scale
    if SOFT_CAP:
        scores = soft_cap * _tanh(scores)
    return scores


@triton.jit
def _tanh(x):
    """Return the hyperbolic tangent, accurate to a few units in the last place."""
    square = tl.minimum(x * x, 1.0)
    # A series for small x, where 1 - small would cancel.
    near = x * (1.0 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315))))
    small = tl.exp2(tl.abs(x) * -2.8853900817779268)  # exp(-2|x|)
    ratio = (1.0 - small) / (1.0 + small)
    return tl.where(square < 0.0625, near, tl.where(x < 0, -ratio, ratio))


@data_kernel("partial")
def merge_kernel(
    partial,
    partial_sums,
    query_start_loc,
    starts_stride,
    num_reqs,
    out,
    out_token,
    out_head,
    out_element,
    splits,
    ONE_EACH: tl.constexpr,
    HEAD: tl.constexpr,
    HEAD_TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Program (t, h): head h of token t, merged from the results for the parts of its keys.

    Bound by memory: every part is read once. A part without a visible key has weight 0 and
    is not read, as it was not written. Tokens outside every request are not written.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    if not ONE_EACH:  # noqa: SIM102  # ONE_EACH is constant: the compiler drops the inner one
        if token >= tl.load(query_start_loc + num_reqs * starts_stride):
            return
    first = (token * tl.num_programs(1) + head) * splits
    lane = tl.arange(0, SPLITS)
    sums = tl.load(partial_sums + first + lane, mask=lane < splits, other=float("-inf"))
    top = tl.max(sums, 0)
    top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.exp2(sums - top), 0)
    element = tl.arange(0, HEAD_TILE)
    in_head = element < HEAD
    acc = tl.zeros([HEAD_TILE], tl.float32)
    for base in range(0, splits, AT_ONCE):
        part = base + tl.arange(0, AT_ONCE)
        share = tl.load(partial_sums + first + part, mask=part < splits, other=float("-inf"))
        weight = tl.exp2(share - top)
        rows = partial + (first + part)[:, None] * HEAD + element[None, :]
        kept = (weight != 0)[:, None] & in_head[None, :]  # NaN too
        acc += tl.sum(weight[:, None] * tl.load(rows, mask=kept, other=0.0), 0)
    acc = acc / tl.where(total != 0, total, 1.0)
    place = out + token * out_token + head.to(tl.int64) * out_head + element * out_element
    tl.store(place, acc.to(out.dtype.element_ty), mask=in_head)
