"""Check the states that kernels of state-space layers would read and write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from attnproof.harness.model.violation import Violation

_NOBODY = (0, -1)
"""Blocks that a kernel neither reads nor writes."""


class StateRow(NamedTuple):
    """Tokens and states that a kernel reads and writes for one row of the metadata."""

    field: str
    """Field of the metadata that names its states."""
    tokens: list[int]
    """Query tokens, by their index in the batch."""
    states: list[int]
    """Blocks: that of the state which is read, and those of states that are written."""
    has_state: bool
    """True if a state is read before the first token."""
    accepted: int | None = None
    """Number of states that the step before has left valid, None of a row without drafts."""


class Requests(NamedTuple):
    """Tokens, states and flags of each request, from the batch."""

    starts: np.ndarray
    """(R+1,) query offsets."""
    states: np.ndarray
    """(R, 1 + K) blocks of the states, NULL of padding."""
    has_state: np.ndarray
    """(R,) True if a token of the request has been computed."""
    accepted: np.ndarray
    """(R,) tokens of the step before that are kept."""
    speculative: np.ndarray
    """(R,) True if the state to read is among those that drafts of the step before have left."""
    in_prompt: np.ndarray
    """(R,) True if in its prompt, without drafts: the step after reads the first state."""


def state_violations(requests: Requests, rows: Iterable[StateRow]) -> Iterator[Violation]:
    """Require that each token is computed once, with the states of its own request."""
    starts = requests.starts
    computed = np.zeros(starts[-1], np.int64)
    for row in rows:
        if not row.tokens or (row.tokens[0] >= starts[-1] and row.states[0] in _NOBODY):
            continue  # graph padding
        if row.states[0] in _NOBODY:
            yield Violation(row.field, "gives a request the null block for a state")
            return
        if max(row.tokens) >= starts[-1]:
            yield Violation(row.field, "gives padding a state")
            return
        request = int(np.searchsorted(starts, row.tokens[0], side="right")) - 1
        if row.tokens != [*range(starts[request], starts[request + 1])]:
            yield Violation(row.field, "runs other tokens than those of one request")
            return
        computed[row.tokens] += 1
        if row.states != requests.states[request, : len(row.states)].tolist():
            yield Violation(row.field, "names another state than the request's")
        if row.has_state != requests.has_state[request]:
            read = "reads a state that nobody has written for the request"
            yield Violation(row.field, read if row.has_state else "loses the request's state")
        if row.accepted is None and requests.speculative[request]:
            yield Violation(row.field, "reads the first state whatever tokens were accepted")
        if row.accepted is not None and len(row.tokens) > 1 and requests.in_prompt[request]:
            yield Violation(row.field, "leaves the state of the prompt's last token to a draft's")
        if row.accepted not in (None, requests.accepted[request]):
            yield Violation("num_accepted_tokens", "is that of another request")
    if (computed != 1).any():
        yield Violation("num_actual_tokens", "has a token that no row or more than one computes")
