"""What the `consume` of several operations shares: outputs taken as a kernel takes them.

Nothing here looks at the reference: the batch in numbers says what is right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from attnproof.harness.cases.batches.tensors import BatchArrays, batch_arrays
from attnproof.harness.consumer.diagnosis import owner, position_of, what_is_wrong, who
from attnproof.harness.consumer.tiny_attention import attention
from attnproof.harness.consumer.visible_keys import (
    CAUSAL,
    ExpectedTokens,
    Mask,
    VisibleKeys,
    differing,
)
from attnproof.harness.model.case import Batch
from attnproof.harness.model.operation import Breach, Outputs

_TOLERANCE = 1e-9
_FIELDS = {"lengths": "seq_lens", "blocks": "block_table_tensor"}
_MIRRORS = ("query_start_loc", "seq_lens")


class Rows(NamedTuple):
    """The rows of a batch as a kernel takes them; arrays of integers."""

    starts: np.ndarray
    """(R + 1,) where each row's queries begin."""
    seq_lens: np.ndarray
    """(R,)"""
    table: np.ndarray
    """(R, W)"""
    causal: bool = True
    max_query_len: int | None = None
    max_seq_len: int | None = None


def expected_tokens(batch: Batch) -> ExpectedTokens:
    """What is right for a case's batch; its arrays are those that the case was laid out with."""
    return ExpectedTokens(batch_arrays(batch))


def expected_tokens_uncached(batch: Batch) -> ExpectedTokens:
    """What is right for a batch that no case was laid out with."""
    return ExpectedTokens(BatchArrays(batch))


def int64_array(value: Any) -> np.ndarray:
    """A tensor, an array or a list as int64."""
    found = value.cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    return found.astype(np.int64)


def metadata_violations(
    expected: ExpectedTokens,
    outputs: Outputs,
    prefix: str = "",
    *,
    tokens: np.ndarray | None = None,
    chunk: int = 0,
    computed: bool = True,
) -> Iterator[Breach]:
    """Metadata by field in the outputs: what its rows make `tokens` of the batch see.

    The kernel's queries are `tokens` (default: all), in their order. With `chunk` they
    must see their chunk of so many positions; `computed`: whether the number of computed
    tokens must put each token where it is. Mirrors that differ are judged as well.
    """
    wanted = np.arange(len(expected.requests)) if tokens is None else tokens
    must = Mask(expected.batch.causal, chunk=chunk) if not chunk else Mask(chunk=chunk)
    for mirror in ("", "_cpu"):
        starts, seq_lens = (int64_array(outputs[f"{prefix}{name}{mirror}"]) for name in _MIRRORS)
        if mirror and all(
            np.array_equal(int64_array(outputs[f"{prefix}{name}"]), values)
            for name, values in zip(_MIRRORS, (starts, seq_lens), strict=True)
        ):
            break
        rows = Rows(
            starts,
            seq_lens,
            int64_array(outputs[f"{prefix}block_table_tensor"]),
            outputs[f"{prefix}causal"],
            outputs[f"{prefix}max_query_len"],
            outputs[f"{prefix}max_seq_len"],
        )
        found = list(row_violations(expected, rows, wanted, must))
        for breach in found:
            named = breach.field + mirror if breach.field in _MIRRORS else breach.field
            yield breach._replace(field=f"{prefix}{named}")
        if found:
            return
    if computed:
        known = int64_array(outputs[f"{prefix}num_computed_tokens_cpu"])
        yield from position_violations(expected, rows.starts, known, wanted, chunk, prefix)


def row_violations(
    expected: ExpectedTokens, rows: Rows, tokens: np.ndarray, mask: Mask = CAUSAL
) -> Iterator[Breach]:
    """What a kernel would do wrongly with these rows, whose queries are `tokens` of the batch.

    Fields are those of metadata. At most one breach, the first.
    """
    lens = np.diff(rows.starts)
    if not len(rows.starts) - 1 == len(rows.seq_lens) == len(rows.table):
        yield Breach("query_start_loc", "has other rows than the lengths and the block table")
        return
    misplaced = _misplaced(expected, rows.starts, lens, tokens)
    if misplaced:
        yield Breach("query_start_loc", *misplaced)
        return
    owners = np.repeat(np.arange(len(lens)), lens)
    indices = np.arange(len(owners)) - np.repeat(rows.starts[:-1], lens)
    if rows.max_query_len is not None and (indices >= rows.max_query_len).any():
        token = tokens[int(np.argmax(indices >= rows.max_query_len))]
        detail = f"{who(expected, token)} is not computed: max_query_len is {rows.max_query_len}"
        yield Breach("max_query_len", "leaves tokens uncomputed", detail)
        return
    must = expected.visible_keys(tokens, mask)
    seen = _seen(rows, owners, indices, lens, expected.block_size)
    for breach in visible_key_violations(expected, must, seen, tokens, mask):
        cut = breach.field == "seq_lens" and _is_cut(must, seen, rows)
        yield breach._replace(field="max_seq_len") if cut else breach


def _misplaced(
    expected: ExpectedTokens, starts: np.ndarray, lens: np.ndarray, tokens: np.ndarray
) -> tuple[str, str] | None:
    """Tokens that no row computes, or that several do."""
    if not len(starts) or starts[0] != 0 or (lens < 0).any():
        text = f"its rows begin at {starts.tolist()[:20]}"
        return "does not give each token to one row", f"query_start_loc: {text}"
    if starts[-1] < len(tokens):
        token = tokens[starts[-1]]
        return "leaves tokens without a row", f"{who(expected, token)} is in no row"
    if starts[-1] > len(tokens):
        text = f"{starts[-1]} tokens are in rows, {len(tokens)} are anybody's"
        return "gives a row to nobody's token", text
    owners = np.repeat(np.arange(len(lens)), lens)
    requests = expected.requests[tokens]
    mixed = np.flatnonzero((np.diff(owners) == 0) & (np.diff(requests) != 0))
    if len(mixed):
        one, other = tokens[mixed[0]], tokens[mixed[0] + 1]
        text = f"{who(expected, other)} is in one row with {who(expected, one)}"
        return "puts two requests into one row", text
    return None


def _seen(
    rows: Rows, owners: np.ndarray, indices: np.ndarray, lens: np.ndarray, block_size: int
) -> VisibleKeys:
    """Causal to the bottom right: the last query of a row is at the end of its sequence."""
    ends = rows.seq_lens[owners]
    stop = ends - lens[owners] + indices + 1 if rows.causal else ends
    if rows.max_seq_len is not None:
        stop = np.minimum(stop, rows.max_seq_len)
    stop = np.maximum(stop, 0)
    return VisibleKeys(owners, np.zeros_like(stop), stop, rows.table, block_size)


def visible_key_violations(
    expected: ExpectedTokens,
    must: VisibleKeys,
    seen: VisibleKeys,
    tokens: np.ndarray,
    mask: Mask = CAUSAL,
) -> Iterator[Breach]:
    """The first of `tokens` that does not see what it must, by slots and by attention."""
    wrong = differing(must, seen)
    if len(wrong):
        index = int(wrong[0])
        words = what_is_wrong(expected, must, seen, int(tokens[index]), index, mask)
        yield Breach(_FIELDS[words.about], words.kind, words.detail)
        return
    ours = attention(must, tokens, expected.live)
    theirs = attention(seen, tokens, expected.live)
    if ours is None or theirs is None:
        return
    off = ~(np.abs(ours - theirs) <= _TOLERANCE).all(1)
    if off.any():
        token = tokens[int(np.argmax(off))]
        detail = f"attention of {who(expected, token)} is not that over the batch"
        yield Breach("block_table_tensor", "attends to something else", detail)


def _is_cut(must: VisibleKeys, seen: VisibleKeys, rows: Rows) -> bool:
    """Whether the bound on lengths is what hides keys from the first token that misses some."""
    index = int(np.argmax(must.stop - must.first != seen.stop - seen.first))
    bound, length = rows.max_seq_len, int(rows.seq_lens[seen.rows[index]])
    misses = must.stop[index] - must.first[index] > seen.stop[index] - seen.first[index]
    return bool(bound is not None and misses and seen.stop[index] == bound < length)


def position_violations(
    expected: ExpectedTokens,
    starts: np.ndarray,
    computed: np.ndarray,
    tokens: np.ndarray,
    chunk: int = 0,
    prefix: str = "",
) -> Iterator[Breach]:
    """Tokens that the number of computed tokens puts at another position."""
    lens = np.diff(starts)
    shift = np.repeat(computed - starts[:-1], lens)
    given = np.arange(len(shift)) + shift
    right = expected.positions[tokens] % chunk if chunk else expected.positions[tokens]
    wrong = np.flatnonzero(given != right)
    if len(wrong):
        token = int(tokens[wrong[0]])
        text = (
            f"{who(expected, token)} is put at position {given[wrong[0]]}, is at {right[wrong[0]]}"
        )
        field = f"{prefix}num_computed_tokens_cpu"
        yield Breach(field, "puts tokens at other positions", text)


def slot_violations(
    expected: ExpectedTokens,
    slots: Any,
    field: str,
    *,
    tokens: np.ndarray | None = None,
    unwritten: np.ndarray | None = None,
) -> Iterator[Breach]:
    """Each of `tokens` written to its slot, then read through the block table.

    `slots` has one entry for each of them (default: all of the batch) and for padding
    behind them. Those that `unwritten` marks have no slot. At most one breach.
    """
    wanted = np.arange(len(expected.requests)) if tokens is None else tokens
    given, right = int64_array(slots), expected.slots[wanted]
    if unwritten is not None:
        right = np.where(unwritten, -1, right)
    if len(given) < len(right):
        detail = f"{who(expected, int(wanted[len(given)]))} has no entry"
        yield Breach(field, "has too few entries", detail)
        return
    wrong = np.flatnonzero(given[: len(right)] != right)
    if len(wrong):
        index = int(wrong[0])
        token, slot, place = int(wanted[index]), int(given[index]), int(right[index])
        yield Breach(field, *_astray(expected, token, slot, place))
        return
    written = np.flatnonzero(given[len(right) :] != -1)
    if len(written):
        slot = int(given[len(right) + written[0]])
        detail = f"entry {len(right) + written[0]} is nobody's token and has slot {slot}"
        yield Breach(field, "writes padding to the cache", detail)


def _astray(expected: ExpectedTokens, token: int, slot: int, place: int) -> tuple[str, str]:
    """A token that is not read back from where it is written: whose place that is."""
    name, block = who(expected, token), slot // expected.block_size
    if place == -1:
        return "writes a token that has no slot", f"{name} is written to slot {slot}"
    if slot == -1:
        return "leaves a token unwritten", f"{name} is not written, read at slot {place}"
    told = f"{name} is written to slot {slot} and read at slot {place}"
    request = int(expected.requests[token])
    position = position_of(expected, request, slot)
    if position is not None:
        if position < expected.computed[request]:
            kind = "overwrites a cached key of its own request"
        else:
            kind = "writes a token where it is not read"
        return kind, f"{told}, which is position {position}"
    other = owner(expected, block)
    if other is None:
        return "writes into a block that no request has", f"{told}, in block {block}"
    return "overwrites another request's cache", f"{told}, in block {block} of request {other}"
