"""Check decodes and prefills of a batch that go to separate kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from attnproof.harness.consumer.batch import Rows, int64_array, row_violations, slot_violations
from attnproof.harness.consumer.visible_keys import ExpectedTokens, Mask
from attnproof.harness.model.call import Outputs
from attnproof.harness.model.violation import Violation

Counts = tuple[int, int, int, int]
"""num_decodes, num_prefills, num_decode_tokens, num_prefill_tokens"""


def count_violations(
    expected: ExpectedTokens, counts: Counts, threshold: int, *, uniform: bool = False
) -> Iterator[Violation]:
    """Check a batch that is split at `counts` into rows of decodes, then of prefills.

    A decode has at most `threshold` queries. With `uniform` all decodes that have queries
    have equally many. The tokens of both parts must see the keys that they see in the batch.
    """
    decodes, prefills, decode_tokens, prefill_tokens = counts
    lens = np.diff(expected.starts)
    before = lens[:decodes]
    if (before > threshold).any():
        row = int(np.argmax(before > threshold))
        text = f"request {row} has {before[row]} queries, a decode at most {threshold}"
        yield Violation("num_decodes", "takes a prefill for a decode", text)
        return
    if uniform and len(set(before[before > 0].tolist())) > 1:
        text = f"the decodes have {before.tolist()[:20]} queries"
        yield Violation("num_decodes", "takes rows of several lengths for uniform ones", text)
        return
    total = len(expected.requests)
    if decode_tokens + prefill_tokens < total:
        text = f"{decode_tokens} and {prefill_tokens} tokens, the requests have {total}"
        yield Violation("num_prefill_tokens", "leaves tokens in neither part", text)
        return
    parts = (
        ("num_decode_tokens", 0, decodes, 0, decode_tokens),
        ("num_prefill_tokens", decodes, decodes + prefills, decode_tokens, total),
    )
    yield from _part_violations(expected, parts)


def region_violations(
    expected: ExpectedTokens, counts: Sequence[int], threshold: int
) -> Iterator[Violation]:
    """Check a batch that is split into rows of decodes, of extends, then of prefills.

    `counts` are the rows of each, then the tokens of each. A decode has at most `threshold`
    queries; an extend that has more has computed tokens. The tokens of all parts must see
    the keys that they see in the batch.
    """
    decodes, extends, prefills, decode_tokens, extend_tokens, prefill_tokens = counts
    lens, stop = np.diff(expected.starts), decodes + extends
    prompts = (lens > threshold) & (expected.computed == 0)
    if (lens[:decodes] > threshold).any():
        row = int(np.argmax(lens[:decodes] > threshold))
        text = f"request {row} has {lens[row]} queries, a decode at most {threshold}"
        yield Violation("num_decodes", "takes a longer query for a decode", text)
        return
    if prompts[decodes:stop].any():
        row = decodes + int(np.argmax(prompts[decodes:stop]))
        text = f"request {row} has no computed token"
        yield Violation("num_extends", "takes a prefill for an extend", text)
        return
    total = len(expected.requests)
    if decode_tokens + extend_tokens + prefill_tokens < total:
        text = f"the requests have {total} tokens"
        yield Violation("num_prefill_tokens", "leaves tokens in no part", text)
        return
    end = decode_tokens + extend_tokens
    parts = (
        ("num_decode_tokens", 0, decodes, 0, decode_tokens),
        ("num_extend_tokens", decodes, stop, decode_tokens, end if prefills else total),
        ("num_prefill_tokens", stop, stop + prefills, end, total),
    )
    yield from _part_violations(expected, parts)


def _part_violations(
    expected: ExpectedTokens, parts: Iterable[tuple[str, int, int, int, int]]
) -> Iterator[Violation]:
    """Yield the first mistake in parts (field, first row, end of rows, first token, end)."""
    total = len(expected.requests)
    for field, first, stop, begin, end in parts:
        tokens = np.arange(begin, max(begin, min(end, total)))
        for violation in row_violations(
            expected, _part(expected, first, stop), tokens, Mask(expected.batch.causal)
        ):
            yield violation._replace(field=field)
            return


def _part(expected: ExpectedTokens, first: int, stop: int) -> Rows:
    """Return rows [first, stop) of the batch with offsets from 0, as a view has them."""
    starts = expected.starts[first : stop + 1]
    seq_lens = expected.computed + np.diff(expected.starts)
    rows = slice(first, stop)
    return Rows(
        starts - starts[:1].sum(), seq_lens[rows], expected.table[rows], expected.batch.causal
    )


def view_violations(
    expected: ExpectedTokens, outputs: Outputs, prefix: str, begin: int, end: int
) -> Iterator[Violation]:
    """Check rows and slots of a view of tokens [begin, end).

    Tokens at or beyond the batch's last one are padding and in no row.
    """
    tokens = np.arange(begin, max(begin, min(end, len(expected.requests))))
    bounds = outputs[f"{prefix}.bounds"].values
    starts, seq_lens, table = (int64_array(outputs[f"{prefix}.{name}"]) for name in _VIEWED)
    rows = Rows(starts, seq_lens, table, True, bounds["max_query_len"], bounds["max_seq_len"])
    for violation in row_violations(expected, rows, tokens):
        field = _NAMES.get(str(violation.field), str(violation.field))
        yield violation._replace(field=f"{prefix}.{field}")
    slots = int64_array(outputs[f"{prefix}.slot_mapping"])[: end - begin]
    yield from slot_violations(expected, slots, f"{prefix}.slot_mapping", tokens=tokens)


_VIEWED = ("query_start_loc", "seq_lens", "block_table")
_NAMES = {
    "block_table_tensor": "block_table",
    "max_query_len": "bounds",
    "max_seq_len": "bounds",
}
