"""The check that a batch of a case file is consistent; a batch that is drawn always is."""

from __future__ import annotations

from attnproof.harness.model.case import Batch

MOST_ELEMENTS = 2**26
"""Maximum number of elements of the block table and the tokens together."""
_MOST_TOKENS = 2**31 - 1
"""Maximum length of a sequence, which an int32 must hold."""


def batch_problem(batch: Batch) -> str:
    """Return the first inconsistency of a batch with its place, "" for a consistent batch."""
    counts = (len(batch.query_lens), len(batch.computed_lens), len(batch.blocks))
    if len(set(counts)) > 1:
        return "batch: {} query_lens, {} computed_lens and {} blocks".format(*counts)
    return _rows_problem(batch) or _optional_problem(batch) or _size_problem(batch)


def _rows_problem(batch: Batch) -> str:
    rows = zip(batch.query_lens, batch.computed_lens, batch.blocks, strict=True)
    for row, (query_len, computed, blocks) in enumerate(rows):
        tokens = query_len + computed
        if tokens + batch.seq_slack > _MOST_TOKENS:
            return f"batch.computed_lens[{row}]: a sequence of more than {_MOST_TOKENS} tokens"
        if not batch.no_slots and len(blocks) != -(-tokens // batch.block_size):
            held = f"{len(blocks)} blocks for {tokens} tokens of block size {batch.block_size}"
            return f"batch.blocks[{row}]: {held}"
    return ""


def _optional_problem(batch: Batch) -> str:
    rows = batch.num_requests + batch.padded_requests
    for name in ("encoder_seq_lens", "dcp_local_seq_lens"):
        values = getattr(batch, name)
        if values is not None and len(values) != rows:
            return f"batch.{name}: {len(values)} entries for {rows} rows"
    if batch.prompt_lens is not None and len(batch.prompt_lens) != batch.num_requests:
        entries = f"{len(batch.prompt_lens)} entries for {batch.num_requests} requests"
        return f"batch.prompt_lens: {entries}"
    if batch.later and batch.subclassed:
        return "batch.later: not together with batch.subclassed"
    tokens = batch.num_tokens + batch.padded_tokens
    indices = batch.logits_indices or ()
    if any(index >= tokens for index in indices):
        return f"batch.logits_indices: {max(indices)}, of {tokens} tokens"
    return ""


def _size_problem(batch: Batch) -> str:
    rows = batch.num_requests + batch.padded_requests
    columns = max(map(len, batch.blocks), default=0) + batch.spare_columns
    tokens = batch.num_tokens + batch.padded_tokens + batch.spare_slots + batch.logits_padding
    tokens += len(batch.logits_indices or ())
    elements = rows * (columns + 1) + tokens
    if elements <= MOST_ELEMENTS:
        return ""
    return f"batch: {elements} table entries and tokens, at most {MOST_ELEMENTS} are allowed"
