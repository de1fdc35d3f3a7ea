"""Batches with sampled tokens, and the batches that they are reduced to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import batches, token_sets
from attnproof.harness.cases.batches.subclass import REQUEST_FIELDS, TOKEN_FIELDS
from attnproof.harness.cases.batches.tensors import lay_out
from attnproof.harness.consumer.batch import expected_tokens_uncached, metadata_violations
from attnproof.harness.model.call import Outputs
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.verdict import Kind
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.metadata import batch_of, has_logits, metadata_outputs
from attnproof.reference.shared import CommonAttentionMetadata

ITSELF = "itself"
"""Output field of a batch that is not to be reduced: True if the result is that batch itself."""
REDUCED = "reduced"
"""Output field of any other batch: True if the result is another batch."""
KEPT = frozenset(
    {
        *("seq_lens", "seq_lens_cpu", "num_computed_tokens_cpu", "block_table_tensor"),
        *("slot_mapping", "logits_indices_padded", "dcp_local_seq_lens"),
        *(*REQUEST_FIELDS, *TOKEN_FIELDS),
    }
)
"""Output fields that may share memory with the given batch."""
ASCENDING, DESCENDING, TWICE = range(3)
"""Orders of the sampled tokens: ascending, descending, ascending and then all of them again."""
_SAMPLED = st.sampled_from(("last", "last", "some", "some", "all", "drawn", "none"))


def last_tokens(batch: Batch) -> Batch:
    """Return the batch with the last token of each request sampled, as engines do."""
    ends = np.cumsum(np.array(batch.query_lens, dtype=np.int64))
    sampled = tuple(int(e) - 1 for e, q in zip(ends, batch.query_lens, strict=True) if q)
    return sampling(batch, sampled)


def sampling(batch: Batch, indices: tuple[int, ...] | None) -> Batch:
    """Return the batch with these logits indices and two stale ones behind them."""
    return msgspec.structs.replace(batch, logits_indices=indices, logits_padding=2, num_logits=None)


@st.composite
def sampled_batches(draw: st.DrawFn) -> Batch:
    """Draw a batch with optional fields, most often with sampled tokens, some of them padding."""
    batch = draw(batches(max_requests=5, extras=True))
    which = draw(_SAMPLED)
    tokens = batch.num_tokens + batch.padded_tokens
    if which == "drawn":
        return batch
    if which == "last":
        return last_tokens(batch)
    indices: tuple[int, ...] | None = None
    if which == "some" and tokens:
        indices = tuple(sorted(draw(token_sets(tokens))))
    elif which == "all":
        indices = tuple(range(tokens))
    return sampling(batch, indices)


def makes_new_batch(case: Case) -> bool:
    """True if the result is a new batch: the host may wait for its lengths."""
    batch = batch_of(case)
    return has_logits(case) and max(batch.query_lens, default=0) + batch.query_slack != 1


def lay_out_sampled(case: Case, pattern: int, device: str) -> tuple[CommonAttentionMetadata, Any]:
    """Return metadata of the batch with sampled tokens in the case's order, and the arena."""
    batch, order = batch_of(case), case.params.get("order", ASCENDING)
    sampled = batch.logits_indices
    if sampled and order == DESCENDING:
        batch = msgspec.structs.replace(batch, logits_indices=sampled[::-1])
    elif sampled and order == TWICE:
        batch = msgspec.structs.replace(batch, logits_indices=(*sampled, *sampled))
    metadata, arena = lay_out(batch, pattern, device)
    if case.params.get("wide") and metadata.logits_indices_padded is not None:
        wide = metadata.logits_indices_padded.to(torch.int64)
        metadata = replace(metadata, logits_indices_padded=wide)
    return metadata, arena


def reduced_outputs(metadata: CommonAttentionMetadata, result: Any, prefix: str = "") -> Outputs:
    """Return every field of the result, or only `ITSELF` or `REDUCED` if it is the given batch."""
    itself = result is metadata
    name, value = (ITSELF, itself) if _is_returned(metadata) else (REDUCED, not itself)
    outputs: Outputs = {f"{prefix}{name}": value}
    if not itself:
        outputs |= metadata_outputs(result, prefix, metadata)
    return outputs


def reduced_violations(
    metadata: CommonAttentionMetadata, outputs: Outputs, prefix: str = ""
) -> Iterator[Violation]:
    """Check mirrors, maxima, totals, the request of each sampled token, and the kept keys."""
    indices = metadata.logits_indices_padded
    if _is_returned(metadata) or indices is None:
        if not outputs[f"{prefix}{ITSELF}"]:
            yield from _copy_violations(metadata, outputs, prefix)
        return
    if not outputs[f"{prefix}{REDUCED}"]:
        yield Violation(f"{prefix}{REDUCED}", "is the given batch, not reduced")
        return
    starts = outputs[f"{prefix}query_start_loc_cpu"].numpy().astype(np.int64)
    if outputs[f"{prefix}query_start_loc"].tolist() != starts.tolist():
        yield Violation(f"{prefix}query_start_loc", "differs from its mirror on the CPU")
    sampled = indices[: metadata.num_logits_indices].cpu().numpy()
    offsets = metadata.query_start_loc_cpu.numpy()
    owners = np.searchsorted(offsets[1:], sampled, side="right")
    counts = np.bincount(owners, minlength=metadata.num_reqs)[: metadata.num_reqs]
    if np.diff(starts).tolist() != counts.tolist():
        yield Violation(f"{prefix}query_start_loc", "does not count each request's sampled tokens")
    if outputs[f"{prefix}num_actual_tokens"] != counts.sum():
        yield Violation(f"{prefix}num_actual_tokens", "is not the number of sampled tokens")
    if outputs[f"{prefix}max_query_len"] != counts.max(initial=0):
        yield Violation(f"{prefix}max_query_len", "is not the most sampled tokens of a request")
    if outputs[f"{prefix}seq_lens_cpu"].tolist() != metadata.seq_lens_cpu.tolist():
        yield Violation(f"{prefix}seq_lens", "loses keys")


def _is_returned(metadata: CommonAttentionMetadata) -> bool:
    """True if there is nothing to reduce: the result is the batch itself."""
    return metadata.logits_indices_padded is None or metadata.max_query_len == 1


def _copy_violations(
    metadata: CommonAttentionMetadata, outputs: Outputs, prefix: str
) -> Iterator[Violation]:
    """Yield a violation for a copy of the batch, and for each field that it has not kept."""
    yield Violation(f"{prefix}{ITSELF}", "is a batch of its own", kind=Kind.CONTRACT)
    for name, value in metadata_outputs(metadata, prefix, metadata).items():
        if not _equal(value, outputs.get(name)):
            yield Violation(name, "is not that of the given batch")


def _equal(first: Any, other: Any) -> bool:
    if isinstance(first, torch.Tensor) and isinstance(other, torch.Tensor):
        return first.dtype == other.dtype and torch.equal(first, other)
    if isinstance(first, np.ndarray) and isinstance(other, np.ndarray):
        return first.dtype == other.dtype and np.array_equal(first, other)
    return first is other or bool(first == other)


def reduced_consumed(
    metadata: CommonAttentionMetadata, batch: Batch, outputs: Outputs, prefix: str = ""
) -> Iterator[Violation]:
    """Check the visible keys of the reduced batch.

    A causal kernel takes a request's queries for its last tokens. The queries see the keys
    of these tokens, because keys are not reduced. The layer writes no keys.
    """
    indices = metadata.logits_indices_padded
    if indices is None or not outputs.get(f"{prefix}{REDUCED}"):
        return  # kept as it is, or found to be
    sampled = indices[: metadata.num_logits_indices].cpu().numpy()
    ends = np.cumsum(np.array(batch.query_lens, np.int64))
    owners = np.searchsorted(ends, sampled, side="right")
    counts = np.bincount(owners, minlength=batch.num_requests)[: batch.num_requests].tolist()
    seq_lens = [q + c for q, c in zip(batch.query_lens, batch.computed_lens, strict=True)]
    computed = [length - count for length, count in zip(seq_lens, counts, strict=True)]
    if min(computed, default=0) < 0:
        return  # tokens that are listed twice give more queries than positions
    reduced = msgspec.structs.replace(
        batch, query_lens=tuple(counts), computed_lens=tuple(computed), causal=True
    )
    yield from metadata_violations(
        expected_tokens_uncached(reduced), outputs, prefix, computed=False
    )
