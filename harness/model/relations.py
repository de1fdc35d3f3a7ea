"""Relations between the outputs of related batches, which need no reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any


class Joined(Enum):
    """How an output of a batch begins, by those of its first and its other requests."""

    ENTRIES = auto()
    """Both parts' entries, one after the other."""
    TOKENS = auto()
    """One entry a token: joined even where a query is cut in two chunks."""
    OFFSETS = auto()
    """Offsets from 0: those of the second part follow the last one of the first."""
    TOKEN_INDICES = auto()
    """Indices of tokens: those of the second part count from its first token."""
    ROW_INDICES = auto()
    """Indices of requests: those of the second part count from its first request."""


@dataclass(frozen=True, kw_only=True)
class Relations:
    """Relations of an operation whose requests do not depend on each other, by output roots."""

    joined: Mapping[str, Joined]
    """Outputs that follow from those of two parts without padding."""
    alone: Mapping[str, Any] = field(default_factory=dict)
    """Parameters that the parts have instead of those of the whole."""
    per_request: frozenset[str] = frozenset()
    """Parameters that are lists of one value a request; shorter ones are repeated."""
    blocks: frozenset[str] = frozenset()
    """Outputs that hold block ids: other ids of the same blocks give other values there."""
    slots: frozenset[str] = frozenset()
    """Outputs that hold slots."""
