"""Metadata of a subclass, as backends and later versions have it: fields that no operation knows.

Of each way in which a field can be declared there is one, with values that no other
field has, so that a field which is lost, or left where it was, shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch

from attnproof.harness.cases.memory.arena import Piece
from attnproof.reference.interface import aligned
from attnproof.reference.shared import CommonAttentionMetadata

LABEL = "of the whole batch"
_REQUEST, _REQUEST_CPU, _TOKEN, _MARK = 1 << 20, 1 << 21, 1 << 22, 1 << 23
"""Where the values of each field begin."""


@cache
def subclass_of(base: type[Any]) -> type[Any]:
    """A subclass of the metadata class with a field of each declaration."""

    @dataclass
    class SubclassedMetadata(base):  # type: ignore[misc]
        """A backend's own metadata."""

        request_tags: torch.Tensor | None = field(default=None, metadata=aligned("request"))
        """(R, 2) int32 on the batch's device."""
        request_tags_cpu: torch.Tensor | None = field(default=None, metadata=aligned("request"))
        """(R,) int64 on the CPU."""
        token_tags: torch.Tensor | None = field(default=None, metadata=aligned("token"))
        """One int64 a token on the batch's device, stale ones behind them."""
        request_marks: tuple[int, ...] | None = field(default=None, metadata=aligned("request"))
        """(R,) Python ints: what is sliced need not be a tensor."""
        label: str = ""
        """Kept as it is."""

    return SubclassedMetadata


Subclassed: type[Any] = subclass_of(CommonAttentionMetadata)
REQUEST_FIELDS = ("request_tags", "request_tags_cpu")
REQUEST_TUPLES = ("request_marks",)
TOKEN_FIELDS = ("token_tags",)


def plain_fields(num_reqs: int) -> dict[str, Any]:
    """The subclass's fields that hold no tensor."""
    return {"request_marks": tuple(range(_MARK, _MARK + num_reqs)), "label": LABEL}


def pieces(num_reqs: int, num_tokens: int, spare: int, stale: int, step: int) -> Iterator[Piece]:
    """The subclass's tensors, to be laid out; padded rows and tokens have values too."""
    rows, tokens = np.arange(num_reqs), np.arange(num_tokens, dtype=np.int64)
    pairs = np.stack([2 * rows, 2 * rows + 1], axis=1) + _REQUEST
    entries = np.concatenate([_TOKEN + tokens, np.full(spare, stale, dtype=np.int64)])
    yield Piece("request_tags", pairs.astype(np.int32), False, (2 * step + 1, step))
    yield Piece("request_tags_cpu", (_REQUEST_CPU + rows).astype(np.int64), True, (step,))
    yield Piece("token_tags", entries, False, (step,))
