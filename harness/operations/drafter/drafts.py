"""Batches with draft tokens, of which the target model accepts some."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import batches
from attnproof.harness.cases.batches.tensors import batch_arrays
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.harness.operations.shared.params import Lengths, Params


class DraftParams(Params, kw_only=True):
    """Drafts of each request of the batch, in the rows' order."""

    drafts: Lengths
    """Draft tokens at the end of each query."""
    sampled: Lengths
    """Accepted drafts and one token more, 0 for a request without a sampled token."""


def draft_params(drafts: list[int], sampled: list[int]) -> dict[str, Any]:
    """Return parameters with these drafts."""
    return {"drafts": drafts, "sampled": sampled}


def draft_problem(case: Case) -> str:
    """Return why the drafts are not those of the batch, "" if they are."""
    batch, drafts, sampled = batch_of(case), case.params["drafts"], case.params["sampled"]
    if not len(drafts) == len(sampled) == batch.num_requests:
        return f"drafts: {len(drafts)} and {len(sampled)} for {batch.num_requests} requests"
    for row, (most, count) in enumerate(zip(drafts, sampled, strict=True)):
        if most and most >= batch.query_lens[row]:
            return f"drafts[{row}]: {most} of {batch.query_lens[row]} queries"
        if count > most + 1:
            return f"sampled[{row}]: {count} of {most} drafts"
    return ""


def draft_unreal(case: Case) -> str:
    """Return why no engine makes these drafts, "" if one may."""
    pairs = zip(case.params["drafts"], case.params["sampled"], strict=False)
    if any(drafts and not sampled for drafts, sampled in pairs):
        return "an engine samples a token of each request with drafts"
    return "" if batch_of(case).causal else "a drafter's batch is causal"


@st.composite
def drafted(draw: st.DrawFn, *, min_requests: int = 0) -> tuple[Batch, list[int], list[int]]:
    """Draw a batch, the drafts of its requests and the number of their sampled tokens."""
    batch = draw(batches(min_requests=min_requests, extras=True))
    drafts = [draw(st.integers(0, min(4, max(0, q - 1)))) for q in batch.query_lens]
    sampled = [draw(st.integers(0 if not k else 1, k + 1)) for k in drafts]
    return batch, drafts, sampled


def drafts_of(batch: Batch) -> tuple[list[int], list[int]]:
    """Return drafts and sampled tokens of a batch of an engine: all but prompts have drafts."""
    drafts = [q - 1 if 1 < q <= 8 else 0 for q in batch.query_lens]
    return drafts, [1 + (row + k) % (k + 1) for row, k in enumerate(drafts)]


def rejected_of(case: Case) -> np.ndarray:
    """Return (R,) int64: rejected tokens of each row, padded rows included."""
    arrays = batch_arrays(batch_of(case))
    rejected = np.zeros(arrays.num_reqs, np.int64)
    for row, (drafts, sampled) in enumerate(
        zip(case.params["drafts"], case.params["sampled"], strict=True)
    ):
        rejected[row] = drafts + 1 - sampled if drafts else 0
    return rejected


def kept_tokens(batch: Batch, rejected: np.ndarray) -> np.ndarray:
    """Return the indices of the tokens that are not rejected, ascending."""
    offsets = batch_arrays(batch).query_start_loc.astype(np.int64)
    ranges = zip(offsets[:-1], offsets[1:] - rejected, strict=True)
    return np.concatenate([np.zeros(0, np.int64), *(np.arange(*span) for span in ranges)])


def without_shares(batch: Batch) -> Batch:
    """Return the batch without rank shares, which cannot be derived for other lengths."""
    return msgspec.structs.replace(batch, dcp_local_seq_lens=None)
