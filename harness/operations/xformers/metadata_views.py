"""Outputs and violations of the views of XFormers metadata: a batch's decodes and prefills."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from attnproof.harness.cases.batches.tensors import batch_arrays
from attnproof.harness.consumer.batch import expected_tokens
from attnproof.harness.consumer.parts import view_violations as part_violations
from attnproof.harness.model.call import MISSING, Free, Outputs
from attnproof.harness.model.case import Batch
from attnproof.harness.model.violation import Violation

TENSORS = ("query_start_loc", "seq_lens", "block_table", "slot_mapping")
COUNTS = (
    "num_actual_tokens",
    "num_prefill_tokens",
    "num_decode_tokens",
    "num_prefills",
    "num_decodes",
)
BOUNDS = ("max_query_len", "max_seq_len")
PREFILLS, DECODES = "prefill_metadata", "decode_metadata"


class Split(NamedTuple):
    """Number of rows and tokens of a batch's decodes."""

    rows: int
    tokens: int


def split_of(batch: Batch, rows: int | None = None) -> Split:
    """Return the split behind `rows` requests, by default behind those with at most one query.

    Without a request behind the split, the tokens of graph padding belong to the decodes.
    """
    query_lens = [*batch.query_lens, *[0] * batch.padded_requests]
    if rows is None:
        rows = next((r for r, q in enumerate(query_lens) if q > 1), len(query_lens))
    rows = min(rows, len(query_lens))
    padded = batch.padded_tokens if rows == len(query_lens) and rows else 0
    return Split(rows, sum(query_lens[:rows]) + padded)


def view_outputs(view: Any, prefix: str, mask: Any) -> Outputs:
    """Return the fields of a view; `attn_bias` is "given" for the mask that was given."""
    if view is None:
        return {prefix: None}
    outputs: Outputs = {prefix: "a view"}
    for name in (*COUNTS, *TENSORS):
        outputs[f"{prefix}.{name}"] = getattr(view, name, MISSING)
    bias = getattr(view, "attn_bias", MISSING)
    outputs[f"{prefix}.attn_bias"] = "given" if bias is mask else bias
    outputs[f"{prefix}.bounds"] = Free(**{name: getattr(view, name, None) for name in BOUNDS})
    return outputs


def view_violations(
    batch: Batch, split: Split, outputs: Outputs, pattern: int = 0
) -> Iterator[Violation]:
    """Compare the two views with the numbers of the batch."""
    arrays = batch_arrays(batch, pattern)
    tokens = arrays.num_actual_tokens if arrays.num_reqs else 0
    behind = (arrays.num_reqs - split.rows, tokens - split.tokens)
    yield from _presence(outputs, PREFILLS, behind[0] > 0)
    yield from _presence(outputs, DECODES, split.tokens > 0)
    if outputs[DECODES] is not None:
        rows, end = slice(0, split.rows), slice(0, split.tokens)
        counts = dict(zip(COUNTS, (split.tokens, 0, split.tokens, 0, split.rows), strict=True))
        yield from _view(arrays, rows, end, counts, outputs, DECODES)
    if outputs[PREFILLS] is not None:
        rows, rest = slice(split.rows, None), slice(split.tokens, tokens)
        counts = dict(zip(COUNTS, (behind[1], behind[1], 0, behind[0], 0), strict=True))
        yield from _view(arrays, rows, rest, counts, outputs, PREFILLS)
    for name, mask in ((DECODES, "given"), (PREFILLS, None)):
        if outputs[name] is not None and outputs[f"{name}.attn_bias"] != mask:
            text = "has not the mask that was given" if mask else "has a mask"
            yield Violation(f"{name}.attn_bias", text)


def views_consumed(batch: Batch, split: Split, outputs: Outputs) -> Iterator[Violation]:
    """Check that the kernels of the two views together compute the whole batch."""
    expected = expected_tokens(batch)
    total = len(expected.requests)
    for prefix, begin, end in ((DECODES, 0, split.tokens), (PREFILLS, split.tokens, total)):
        if outputs[prefix] is not None:
            stop = begin + outputs[f"{prefix}.num_actual_tokens"]
            yield from part_violations(expected, outputs, prefix, begin, stop)
        elif begin < min(end, total):
            text = f"tokens from {begin} on are in neither part"
            yield Violation(prefix, "leaves tokens in neither part", text)


def _presence(outputs: Outputs, name: str, expected: bool) -> Iterator[Violation]:
    if (outputs[name] is not None) != expected:
        yield Violation(name, "is None" if expected else "is there though the batch has none")


def _view(
    arrays: Any,
    rows: slice,
    tokens: slice,
    counts: dict[str, int],
    outputs: Outputs,
    prefix: str,
) -> Iterator[Violation]:
    """Check the view's counts, its rebased rows and tokens, and its bounds."""
    query_lens = arrays.query_start_loc[1:] - arrays.query_start_loc[:-1]
    view = {name: outputs[f"{prefix}.{name}"] for name in TENSORS}
    for name, count in counts.items():
        got = outputs[f"{prefix}.{name}"]
        if type(got) is not int or got != count:
            yield Violation(f"{prefix}.{name}", f"is not {count}, its own count")
    offsets = view["query_start_loc"].tolist()
    if not offsets or offsets[0] != 0:
        yield Violation(f"{prefix}.query_start_loc", "is not rebased to 0")
    elif [b - a for a, b in pairwise(offsets)] != query_lens[rows].tolist():
        yield Violation(f"{prefix}.query_start_loc", "has not the queries of its rows")
    if view["seq_lens"].tolist() != arrays.seq_lens[rows].tolist():
        yield Violation(f"{prefix}.seq_lens", "has not the lengths of its rows")
    live = ~arrays.stale_blocks[rows]
    table = view["block_table"].cpu().numpy()
    if table.shape != live.shape or (table[live] != arrays.block_table[rows][live]).any():
        yield Violation(f"{prefix}.block_table", "has not the blocks of its rows")
    if view["slot_mapping"].tolist() != arrays.slot_mapping[tokens].tolist():
        yield Violation(f"{prefix}.slot_mapping", "has not exactly the slots of its tokens")
    yield from _bounds(arrays, rows, query_lens, outputs[f"{prefix}.bounds"].values, prefix)


def _bounds(
    arrays: Any, rows: slice, query_lens: Any, bounds: dict[str, Any], prefix: str
) -> Iterator[Violation]:
    lengths = {"max_query_len": query_lens[rows], "max_seq_len": arrays.seq_lens[rows]}
    for name, values in lengths.items():
        bound, longest, most = bounds[name], int(values.max(initial=0)), getattr(arrays, name)
        if type(bound) is not int:
            yield Violation(f"{prefix}.bounds", f"has a {name} that is no Python int")
        elif bound < longest:
            yield Violation(f"{prefix}.bounds", f"has a {name} below its longest, {longest}")
        elif bound > most:
            yield Violation(f"{prefix}.bounds", f"has a {name} above the batch's, {most}")
