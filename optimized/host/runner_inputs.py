"""Compute the inputs of a step of a persistent batch, one pass over its rows.

All arguments are sizes, flags and addresses of dense tensors: of int32, except `mapping` and
token tensors with a `wide` flag, which are int64 if it is set, and `pos` and `indices`, which
are int64. A `stride` is in elements.
"""

from __future__ import annotations

from .addresses import element, int32_at, int64_at, set_element
from .compiled import entry


@entry
def fill_positions(
    rows: int,
    mapping: int,
    wide: bool,
    starts: int,
    computed: int,
    pos: int,
    seq_lens: int,
    length: int,
) -> None:
    """Write the positions of all tokens, and `length` sequence lengths, 0 behind the rows."""
    lengths = int32_at(seq_lens, length)
    begin = 0
    for r in range(rows):
        end = element(starts, r + 1, False)
        slot = element(mapping, r, wide)
        before = element(computed, slot, False) if slot >= 0 else 0
        positions = int64_at(pos + 8 * begin, end - begin)
        for i in range(end - begin):
            positions[i] = before + i
        lengths[r] = before + end - begin
        begin = end
    for r in range(rows, length):
        lengths[r] = 0


@entry
def fill_prefill(
    rows: int,
    mapping: int,
    wide: bool,
    starts: int,
    computed: int,
    prefill_len: int,
    tokens: int,
    tokens_stride: int,
    input_ids: int,
    lookahead: int,
    upcoming: int,
    upcoming_stride: int,
) -> None:
    """Write the query tokens and the tokens that come next of rows in their prompt."""
    begin = 0
    for r in range(rows):
        end = element(starts, r + 1, False)
        slot = element(mapping, r, wide)
        if slot >= 0 and element(computed, slot, False) < element(prefill_len, slot, False):
            length = element(prefill_len, slot, False)
            first = element(computed, slot, False)
            last = first + end - begin
            history = int32_at(tokens + 4 * slot * tokens_stride, max(last, length))
            query = int32_at(input_ids + 4 * begin, end - begin)
            for i in range(end - begin):
                query[i] = history[first + i]
            for i in range(lookahead):
                token = history[last + i] if last + i < length else 0
                set_element(upcoming, i * upcoming_stride + slot, False, token)
        begin = end


@entry
def fill_combined(
    rows: int,
    mapping: int,
    wide: bool,
    starts: int,
    offsets: int,
    seq_lens: int,
    prefill_len: int,
    last_sampled: int,
    wide_last: bool,
    drafts: int,
    drafts_stride: int,
    wide_drafts: bool,
    new_tokens: int,
    input_ids: int,
    indices: int,
) -> None:
    """Write the tokens with logits, and the sampled and draft tokens of the input."""
    begin = 0
    for r in range(rows):
        end = element(offsets, r + 1, False)
        count = end - begin
        stop = element(starts, r + 1, False)
        tokens = int64_at(indices + 8 * begin, count)
        for i in range(count):
            tokens[i] = stop - count + i
        begin = end
        slot = element(mapping, r, wide)
        if slot < 0 or count == 0:
            continue
        length, prompt = element(seq_lens, r, False), element(prefill_len, slot, False)
        if length <= prompt:
            continue
        if new_tokens == 1 and length - count >= prompt:
            set_element(input_ids, stop - count, False, element(last_sampled, slot, wide_last))
        number = count - new_tokens
        for i in range(number):
            token = element(drafts, slot * drafts_stride + i, wide_drafts)
            set_element(input_ids, stop - number + i, False, token)


@entry
def fill_expanded(
    rows: int, mapping: int, wide: bool, offsets: int, slots: int, places: int
) -> None:
    """Write the slot of each logit, and its place among its row's logits."""
    begin = 0
    for r in range(rows):
        end = element(offsets, r + 1, False)
        slot = element(mapping, r, wide)
        for i in range(end - begin):
            set_element(slots, begin + i, wide, slot)
            set_element(places, begin + i, False, i)
        begin = end


@entry
def fill_counts(
    rows: int,
    mapping: int,
    wide: bool,
    offsets: int,
    seq_lens: int,
    prefill_len: int,
    sampled: int,
    rejected: int,
) -> None:
    """Write the sampled and the rejected tokens of each row."""
    for r in range(rows):
        slot = element(mapping, r, wide)
        left = 0
        if slot < 0 or element(seq_lens, r, False) < element(prefill_len, slot, False):
            set_element(sampled, r, False, 0)
        else:
            count = element(offsets, r + 1, False) - element(offsets, r, False)
            left = count - element(sampled, r, False)
        set_element(rejected, r, False, left)


@entry
def update(
    rows: int,
    mapping: int,
    wide: bool,
    computed: int,
    last_sampled: int,
    wide_last: bool,
    counts: int,
    counts_stride: int,
    sampled: int,
    sampled_stride: int,
    wide_sampled: bool,
    num_sampled: int,
    num_rejected: int,
    starts: int,
    history: int,
    history_stride: int,
    total_len: int,
) -> None:
    """Add the sampled tokens to the slots' state; `counts` and `starts` may be 0, for none."""
    for r in range(rows):
        slot = element(mapping, r, wide)
        if slot < 0:
            continue
        length, number = element(total_len, slot, False), element(num_sampled, r, False)
        for i in range(number):
            token = element(sampled, r * sampled_stride + i, wide_sampled)
            set_element(history, slot * history_stride + length + i, False, token)
            if counts != 0:
                place = slot * counts_stride + token
                set_element(counts, place, False, element(counts, place, False) + 1)
            set_element(last_sampled, slot, wide_last, token)
        set_element(total_len, slot, False, length + number)
        query_len = 0
        if starts != 0:
            query_len = element(starts, r + 1, False) - element(starts, r, False)
        grown = element(computed, slot, False) + query_len - element(num_rejected, r, False)
        set_element(computed, slot, False, grown)


@entry
def advance(rows: int, mapping: int, wide: bool, computed: int, starts: int) -> None:
    """Add each row's query tokens to the computed tokens of its slot."""
    for r in range(rows):
        slot = element(mapping, r, wide)
        if slot >= 0:
            query_len = element(starts, r + 1, False) - element(starts, r, False)
            set_element(computed, slot, False, element(computed, slot, False) + query_len)
