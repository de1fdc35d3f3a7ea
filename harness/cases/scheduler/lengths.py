"""Query lengths of an engine step: those of running requests, and of decodes that join them."""

from __future__ import annotations

import numpy as np

from attnproof.harness.cases.scheduler.config import SchedulerConfig
from attnproof.harness.cases.scheduler.step import (
    COMPUTED,
    DRAFTS,
    KNOWN,
    PROMPT,
    RESUMED,
    Ints,
)


def running_lens(state: Ints, config: SchedulerConfig, threshold: int) -> Ints:
    """Return the query lengths of the running requests; the budget goes to the oldest.

    `threshold` is the maximum of one request, 0 for no limit.
    """
    query: Ints = state[KNOWN] - state[COMPUTED]
    if config.num_speculative_tokens:
        query += state[DRAFTS]
        np.minimum(query, config.max_model_len - 1 - state[COMPUTED], out=query)
    if threshold:
        np.minimum(query, threshold, out=query)
    budget = config.max_num_batched_tokens
    if query.sum() > budget:
        left = budget - (np.cumsum(query) - query)
        query = np.clip(query, 0, np.maximum(left, 0))
    return query


def decode_padding(state: Ints, query: Ints, config: SchedulerConfig) -> int:
    """Return the number of drafts that an admitted request with one token to compute gets.

    None of them is accepted. They make the request as long as the decodes of the engine step, so
    that there is a graph for it: 0 if a running request computes its prompt, and before 0.32.
    """
    prefill = state[KNOWN] <= np.maximum(state[PROMPT], state[RESUMED])
    if config.engine == "0.11" or (prefill & (query > 0)).any():
        return 0
    return config.num_speculative_tokens
