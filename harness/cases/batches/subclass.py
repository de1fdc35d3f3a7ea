"""A metadata subclass with additional fields, as backends and later engine versions have it.

There is one field for each kind of declaration. No two fields share a value, so a field
that an operation drops or does not slice is detected.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch

from attnproof.harness.cases.batches import later
from attnproof.harness.cases.memory.arena import Piece
from attnproof.reference.interface import aligned
from attnproof.reference.shared import CommonAttentionMetadata

FILLS = {"slot_mapping": -1, "token_codes": 3, "token_names": 5}
"""Entries of padding, 0 in all other fields."""
LABEL = "of the whole batch"
DERIVED = "num_entries"
"""Field that each metadata derives in `__post_init__`."""
_REQUEST, _REQUEST_CPU, _TOKEN, _MARK = 1 << 20, 1 << 21, 1 << 22, 2**64 - 2**20 - 59
_PAIR, _CODE, _NAME = 1 << 27, 1 << 28, 1 << 29
"""First value of each field."""


@cache
def subclass_of(base: type[Any]) -> type[Any]:
    """Make a subclass of a metadata class with one field for each kind of declaration."""

    @dataclass
    class SubclassedMetadata(base):  # type: ignore[misc]
        """Metadata with additional fields."""

        request_tags: torch.Tensor | None = field(default=None, metadata=aligned("request"))
        """(R, 2) int32 on the batch's device."""
        request_tags_cpu: torch.Tensor | None = field(default=None, metadata=aligned("request"))
        """(R,) int64 on the CPU."""
        token_tags: torch.Tensor | None = field(default=None, metadata=aligned("token"))
        """(T,) int64 on the batch's device, then stale entries."""
        token_pairs_cpu: torch.Tensor | None = field(default=None, metadata=aligned("token"))
        """(T, 2) int32 on the CPU, then stale rows."""
        token_codes: np.ndarray | None = field(
            default=None, metadata=aligned("token", fill=FILLS["token_codes"])
        )
        """(T, 2) int64, then stale rows."""
        token_names: list[int] | None = field(
            default=None, metadata=aligned("token", fill=FILLS["token_names"])
        )
        """(T,) Python ints."""
        request_marks: tuple[int, ...] | None = field(default=None, metadata=aligned("request"))
        """(R,) Python ints: a field to slice need not be a tensor."""
        label: str = ""
        """Value of the whole batch, kept unchanged by every operation."""
        num_entries: int = field(init=False)
        """Rows and tokens together: each metadata derives it from its own numbers."""

        def __post_init__(self) -> None:
            """Derive the field that is no argument."""
            getattr(super(), "__post_init__", lambda: None)()
            self.num_entries = self.num_reqs + self.num_actual_tokens

    return SubclassedMetadata


Subclassed: type[Any] = subclass_of(CommonAttentionMetadata)
TENSORS = ("request_tags", "request_tags_cpu", "token_tags", "token_pairs_cpu")
"""Tensors of the subclass."""
ARRAYS = ("token_codes",)
"""Arrays of numpy of the subclass."""
REQUEST_FIELDS = ("request_tags", "request_tags_cpu", *later.REQUEST_FIELDS)
REQUEST_TUPLES, TOKEN_LISTS = ("request_marks",), ("token_names",)
TOKEN_FIELDS = ("token_tags", "token_pairs_cpu", *ARRAYS, *later.TOKEN_FIELDS)
"""Fields of the subclass and of later engines."""
ADDED_FIELDS = (
    *(*REQUEST_FIELDS, *REQUEST_TUPLES, *TOKEN_FIELDS, *TOKEN_LISTS),
    *("label", DERIVED, *later.PLAIN_FIELDS),
)


def plain_fields(num_reqs: int, num_tokens: int, spare: int) -> dict[str, Any]:
    """Return the values of the subclass's fields that hold neither a tensor nor an array.

    A list has `spare` entries behind those of the tokens.
    """
    # Block hashes of 64 bits, -1 for a request without one: numpy has no integer for both.
    marks = [-1 if row % 3 == 1 else _MARK + row for row in range(num_reqs)]
    names = range(_NAME, _NAME + num_tokens + spare)
    return {"request_marks": tuple(marks), "token_names": list(names), "label": LABEL}


def pieces(num_reqs: int, num_tokens: int, spare: int, stale: int, step: int) -> Iterator[Piece]:
    """Yield the subclass's tensors as pieces of an arena, values of padding included."""
    rows, tokens = np.arange(num_reqs), np.arange(num_tokens, dtype=np.int64)
    pairs = np.stack([2 * rows, 2 * rows + 1], axis=1) + _REQUEST
    entries = np.concatenate([_TOKEN + tokens, np.full(spare, stale, dtype=np.int64)])
    yield Piece("request_tags", pairs.astype(np.int32), False, (2 * step + 1, step))
    yield Piece("request_tags_cpu", (_REQUEST_CPU + rows).astype(np.int64), True, (step,))
    yield Piece("token_tags", entries, False, (step,))
    for name, first, dtype in (
        ("token_pairs_cpu", _PAIR, np.int32),
        ("token_codes", _CODE, np.int64),
    ):
        twos = np.full((num_tokens + spare, 2), stale, dtype)
        twos[:num_tokens] = first + np.arange(2 * num_tokens).reshape(-1, 2)
        yield Piece(name, twos, True, (2 * step + 1, step))
