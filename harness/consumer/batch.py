"""Check metadata and slot mappings the way a kernel uses them.

The expected result is computed from the batch's numbers; the reference is never used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from attnproof.harness.cases.batches.tensors import BatchArrays, batch_arrays
from attnproof.harness.consumer.diagnosis import (
    block_owner,
    describe_mistake,
    position_of,
    token_name,
)
from attnproof.harness.consumer.tiny_attention import attention
from attnproof.harness.consumer.visible_keys import (
    CAUSAL,
    ExpectedTokens,
    Mask,
    VisibleKeys,
    differing,
)
from attnproof.harness.model.call import Outputs
from attnproof.harness.model.case import Batch
from attnproof.harness.model.violation import Violation

_TOLERANCE = 1e-9
_FIELDS = {"lengths": "seq_lens", "blocks": "block_table_tensor"}
"""Metadata field blamed for a mistake in lengths or in blocks."""
_MIRRORED = ("query_start_loc", "seq_lens")
"""Fields with a CPU mirror."""


class Rows(NamedTuple):
    """Rows of a batch as a kernel receives them; int64 arrays."""

    starts: np.ndarray
    """(R + 1,) first query token of each row, then their total."""
    seq_lens: np.ndarray
    """(R,) tokens of each sequence."""
    table: np.ndarray
    """(R, W) block ids."""
    causal: bool = True
    max_query_len: int | None = None
    max_seq_len: int | None = None


def expected_tokens(batch: Batch) -> ExpectedTokens:
    """Compute the expected tokens of a case's batch from its cached arrays."""
    return ExpectedTokens(batch_arrays(batch))


def expected_tokens_uncached(batch: Batch) -> ExpectedTokens:
    """Compute the expected tokens of a derived batch, without touching the cached arrays."""
    return ExpectedTokens(BatchArrays(batch))


def int64_array(value: Any) -> np.ndarray:
    """Convert a tensor, an array or a list to an int64 array."""
    array = value.cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    return array.astype(np.int64)


def metadata_violations(
    expected: ExpectedTokens,
    outputs: Outputs,
    prefix: str = "",
    *,
    tokens: np.ndarray | None = None,
    chunk: int = 0,
    computed: bool = True,
) -> Iterator[Violation]:
    """Check the metadata in the outputs whose field names begin with `prefix`.

    The kernel's queries are `tokens` of the batch (default: all), in their order. With
    `chunk` each token must see its chunk of that many positions only. `computed` adds a
    check of num_computed_tokens_cpu. Mirrors are checked if they differ from the device
    tensors.
    """
    wanted = np.arange(len(expected.requests)) if tokens is None else tokens
    mask = Mask(chunk=chunk) if chunk else Mask(expected.batch.causal)
    for mirror in ("", "_cpu"):
        starts, seq_lens = (int64_array(outputs[f"{prefix}{name}{mirror}"]) for name in _MIRRORED)
        if mirror and all(
            np.array_equal(int64_array(outputs[f"{prefix}{name}"]), values)
            for name, values in zip(_MIRRORED, (starts, seq_lens), strict=True)
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
        violations = list(row_violations(expected, rows, wanted, mask))
        for violation in violations:
            named = violation.field + mirror if violation.field in _MIRRORED else violation.field
            yield violation._replace(field=f"{prefix}{named}")
        if violations:
            return
    if computed:
        known = int64_array(outputs[f"{prefix}num_computed_tokens_cpu"])
        yield from position_violations(expected, rows.starts, known, wanted, chunk, prefix)


def row_violations(
    expected: ExpectedTokens, rows: Rows, tokens: np.ndarray, mask: Mask = CAUSAL
) -> Iterator[Violation]:
    """Yield the first mistake of a kernel that gets these rows, if any.

    The rows' queries are `tokens` of the batch. Violations name fields of the metadata.
    """
    lens = np.diff(rows.starts)
    if not len(rows.starts) - 1 == len(rows.seq_lens) == len(rows.table):
        yield Violation("query_start_loc", "has other rows than the lengths and the block table")
        return
    mistake = _row_mistake(expected, rows.starts, lens, tokens)
    if mistake:
        yield Violation("query_start_loc", *mistake)
        return
    owners = np.repeat(np.arange(len(lens)), lens)
    indices = np.arange(len(owners)) - np.repeat(rows.starts[:-1], lens)
    if rows.max_query_len is not None and (indices >= rows.max_query_len).any():
        token = tokens[int(np.argmax(indices >= rows.max_query_len))]
        detail = (
            f"{token_name(expected, token)} is not computed: max_query_len is {rows.max_query_len}"
        )
        yield Violation("max_query_len", "leaves tokens uncomputed", detail)
        return
    required = expected.visible_keys(tokens, mask)
    seen = _seen(rows, owners, indices, lens, expected.block_size)
    for violation in visible_key_violations(expected, required, seen, tokens, mask):
        cut = violation.field == "seq_lens" and _is_cut(required, seen, rows)
        yield violation._replace(field="max_seq_len") if cut else violation


def _row_mistake(
    expected: ExpectedTokens, starts: np.ndarray, lens: np.ndarray, tokens: np.ndarray
) -> tuple[str, str] | None:
    """Return kind and detail if the rows do not partition `tokens` by request, else None."""
    if not len(starts) or starts[0] != 0 or (lens < 0).any():
        text = f"its rows begin at {starts.tolist()[:20]}"
        return "does not give each token to one row", f"query_start_loc: {text}"
    if starts[-1] < len(tokens):
        token = tokens[starts[-1]]
        return "leaves tokens without a row", f"{token_name(expected, token)} is in no row"
    if starts[-1] > len(tokens):
        text = f"{starts[-1]} tokens are in rows, expected {len(tokens)}"
        return "gives rows to more tokens than there are", text
    owners = np.repeat(np.arange(len(lens)), lens)
    requests = expected.requests[tokens]
    mixed = np.flatnonzero((np.diff(owners) == 0) & (np.diff(requests) != 0))
    if len(mixed):
        first, other = tokens[mixed[0]], tokens[mixed[0] + 1]
        text = f"{token_name(expected, other)} is in one row with {token_name(expected, first)}"
        return "puts two requests into one row", text
    return None


def _seen(
    rows: Rows, owners: np.ndarray, indices: np.ndarray, lens: np.ndarray, block_size: int
) -> VisibleKeys:
    """Return the keys that a kernel attends to, by token in row order.

    The causal mask is aligned to the bottom right: a row's last query is the last token of
    its sequence.
    """
    ends = rows.seq_lens[owners]
    stop = ends - lens[owners] + indices + 1 if rows.causal else ends
    if rows.max_seq_len is not None:
        stop = np.minimum(stop, rows.max_seq_len)
    stop = np.maximum(stop, 0)
    return VisibleKeys(owners, np.zeros_like(stop), stop, rows.table, block_size)


def visible_key_violations(
    expected: ExpectedTokens,
    required: VisibleKeys,
    seen: VisibleKeys,
    tokens: np.ndarray,
    mask: Mask = CAUSAL,
) -> Iterator[Violation]:
    """Yield a violation for the first of `tokens` that does not see the required keys, if any.

    Keys are compared by slot, then by the attention over them.
    """
    wrong = differing(required, seen)
    if len(wrong):
        index = int(wrong[0])
        mistake = describe_mistake(expected, required, seen, int(tokens[index]), index, mask)
        yield Violation(_FIELDS[mistake.about], mistake.kind, mistake.detail)
        return
    ours, theirs = (
        attention(visible, tokens, expected.live, expected.block_size)
        for visible in (required, seen)
    )
    if ours is None or theirs is None:
        return
    off = ~(np.abs(ours - theirs) <= _TOLERANCE).all(1)
    if off.any():
        token = tokens[int(np.argmax(off))]
        name = token_name(expected, token)
        detail = f"attention of {name} differs from attention over the required keys"
        yield Violation("block_table_tensor", "attends to other keys", detail)


def _is_cut(required: VisibleKeys, seen: VisibleKeys, rows: Rows) -> bool:
    """True if max_seq_len hides keys from the first token with a wrong number of keys."""
    index = int(np.argmax(required.stop - required.first != seen.stop - seen.first))
    bound, length = rows.max_seq_len, int(rows.seq_lens[seen.rows[index]])
    misses = required.stop[index] - required.first[index] > seen.stop[index] - seen.first[index]
    return bool(bound is not None and misses and seen.stop[index] == bound < length)


def position_violations(
    expected: ExpectedTokens,
    starts: np.ndarray,
    computed: np.ndarray,
    tokens: np.ndarray,
    chunk: int = 0,
    prefix: str = "",
) -> Iterator[Violation]:
    """Yield a violation for the first token with a wrong position by `computed`, if any."""
    lens = np.diff(starts)
    shift = np.repeat(computed - starts[:-1], lens)
    positions = np.arange(len(shift)) + shift
    right = expected.positions[tokens] % chunk if chunk else expected.positions[tokens]
    wrong = np.flatnonzero(positions != right)
    if len(wrong):
        token = int(tokens[wrong[0]])
        name, place = token_name(expected, token), positions[wrong[0]]
        text = f"{name} is put at position {place}, must be at {right[wrong[0]]}"
        field = f"{prefix}num_computed_tokens_cpu"
        yield Violation(field, "puts tokens at other positions", text)


def slot_violations(
    expected: ExpectedTokens,
    slots: Any,
    field: str,
    *,
    tokens: np.ndarray | None = None,
    unwritten: np.ndarray | None = None,
) -> Iterator[Violation]:
    """Yield a violation for the first token that is not written to the slot it is read from.

    `slots` has one entry for each of `tokens` (default: all of the batch), then entries of
    padding, which must be -1. Tokens marked in `unwritten`, bool, must have no slot (-1).
    """
    wanted = np.arange(len(expected.requests)) if tokens is None else tokens
    got, right = int64_array(slots), expected.slots[wanted]
    if unwritten is not None:
        right = np.where(unwritten, -1, right)
    if len(got) < len(right):
        detail = f"{token_name(expected, int(wanted[len(got)]))} has no entry"
        yield Violation(field, "has too few entries", detail)
        return
    wrong = np.flatnonzero(got[: len(right)] != right)
    if len(wrong):
        index = int(wrong[0])
        token, slot, place = int(wanted[index]), int(got[index]), int(right[index])
        yield Violation(field, *_slot_mistake(expected, token, slot, place))
        return
    written = np.flatnonzero(got[len(right) :] != -1)
    if len(written):
        slot = int(got[len(right) + written[0]])
        detail = f"entry {len(right) + written[0]} is padding and has slot {slot}"
        yield Violation(field, "writes padding to the cache", detail)


def _slot_mistake(expected: ExpectedTokens, token: int, slot: int, place: int) -> tuple[str, str]:
    """Return kind and detail of a token written to `slot` and read from `place`."""
    name, block = token_name(expected, token), slot // expected.block_size
    if place == -1:
        return "writes a token that has no slot", f"{name} is written to slot {slot}"
    if slot == -1:
        return "leaves a token unwritten", f"{name} is not written, read at slot {place}"
    detail = f"{name} is written to slot {slot} and read at slot {place}"
    request = int(expected.requests[token])
    position = position_of(expected, request, slot)
    if position is not None:
        if position < expected.computed[request]:
            kind = "overwrites a cached key of its own request"
        else:
            kind = "writes a token where it is not read"
        return kind, f"{detail}, which is position {position}"
    other = block_owner(expected, block)
    if other is None:
        return "writes into a block that no request has", f"{detail}, in block {block}"
    return "overwrites another request's cache", f"{detail}, in block {block} of request {other}"
