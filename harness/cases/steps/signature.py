"""Signature of an engine step: the discrete features that distinguish its structure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attnproof.harness.cases.scheduler.step import COMPUTED, HIT, KNOWN, RESUMED, Step

ATTENTION_CHUNK = 1024
"""Tokens of the local-attention chunk that the chunk-related fields refer to."""


class Signature(NamedTuple):
    """Structure of an engine step, equal for engine steps that exercise the same paths.

    No field is an average, which would hide ragged batches.
    """

    decodes: int
    """Binary digits of the number of decoding rows: 0, 1, 2-3, 4-7 and so on are classes."""
    prefills: int
    """Rows that compute prompt tokens: 0, 1, 2, or 3 for more."""
    order: int
    """1 if a decode comes after a prefill."""
    continued: int
    """1 if a prefill has computed tokens that are not from the prefix cache."""
    split: int
    """1 if a prefill does not reach its last token in this engine step."""
    one_token_prefill: int
    """1 if a prefill computes a single token of several that remain."""
    shared: int
    """Rows with blocks from the prefix cache: 0, 1 some, 2 all."""
    resumed: int
    """1 if a row computes again the tokens that a preemption dropped."""
    preempted: int
    """1 if a request was preempted in this engine step."""
    drafts: int
    """Decodes of more than one token: 0, 1 all of one length, 2 ragged."""
    padding: int
    """0 none, 1 tokens, 2 tokens and requests."""
    full: int
    """1 if the token budget is exhausted."""
    new_block: int
    """Rows whose first query token opens a block: 0 none, 1 some, 2 all."""
    exact_block: int
    """Rows whose sequence fills its last block: 0 none, 1 some, 2 all."""
    crossing: int
    """Largest number of chunk edges inside one row's query: 0, 1, or 2 for more."""
    at_chunk: int
    """Bits: 1 if a sequence ends at the edge of a chunk, 2 if one token after it."""
    longest: int
    """Binary digits of the longest sequence's length."""
    left_out: int
    """1 if a running request got no token."""


def signature(step: Step) -> Signature:
    """Compute the signature of an engine step."""
    state, query, decoding = step.state, step.query_lens, step.decoding
    computed, seq_lens, size = state[COMPUTED], step.seq_lens, step.config.block_size
    decodes = int(np.count_nonzero(decoding))
    prefills = len(query) - decodes
    order = continued = split = one_token = 0
    if prefills:
        rows = np.flatnonzero(~decoding)
        order = int(decoding[rows[0] :].any())
        # A prefill's first chunk starts where the prefix cache ends.
        continued = int((computed[rows] > state[HIT, rows]).any())
        split = int((seq_lens[rows] < state[KNOWN, rows]).any())
        one_token = int((query[rows] == 1).any())
    edges = (seq_lens - 1) // ATTENTION_CHUNK - computed // ATTENTION_CHUNK
    beyond = seq_lens % ATTENTION_CHUNK
    return Signature(
        decodes=decodes.bit_length(),
        prefills=min(prefills, 3),
        order=order,
        continued=continued,
        split=split,
        one_token_prefill=one_token,
        shared=_share(state[HIT] > 0),
        resumed=int((state[RESUMED] > computed).any()),
        preempted=int(step.num_preempted > 0),
        drafts=_drafts(step) if step.config.num_speculative_tokens else 0,
        padding=sum(amount > 0 for amount in step.padding),
        full=int(step.num_tokens == step.config.max_num_batched_tokens),
        new_block=_share(computed % size == 0),
        exact_block=_share(seq_lens % size == 0),
        crossing=min(int(edges.max()), 2),
        at_chunk=int((beyond == 0).any()) + 2 * int((beyond == 1).any()),
        longest=int(seq_lens.max()).bit_length(),
        left_out=int(len(query) < step.num_running),
    )


def _share(mask: np.ndarray) -> int:
    count = int(np.count_nonzero(mask))
    return 0 if not count else 1 + (count == len(mask))


def _drafts(step: Step) -> int:
    lens = step.query_lens[step.decoding]
    if not len(lens) or lens.max() == 1:
        return 0
    return 1 + int(lens.min() != lens.max())
