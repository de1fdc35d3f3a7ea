"""What a field of batch metadata goes with: declared once, where the field is (SPEC.md section 1).

Slicing, virtual batches and padding read the declarations, so that a field which is
added later, in a subclass too, is moved with its requests or tokens and never forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, NamedTuple

Alignment = Literal["offsets", "request", "token", "batch"]
"""One entry more than requests; one a request; one a token; none: it is the whole batch's."""

_KEY = "alignment"


class Aligned(NamedTuple):
    """A field's declaration."""

    alignment: Alignment
    fill: int
    """What padding adds to it."""


def aligned(alignment: Alignment, *, fill: int = 0) -> Mapping[str, Any]:
    """The `metadata` of a dataclass field whose first dimension counts requests or tokens.

    The field holds a tensor, a numpy array, a list, a tuple or None. "request": one
    entry a request; "token": at least one a token, those behind `num_actual_tokens`
    stale. Padding adds `fill`. A field declared without this is kept as it is.
    """
    return {_KEY: Aligned(alignment, fill)}


_alignments: dict[type[Any], dict[str, Aligned]] = {}
_added: dict[tuple[type[Any], type[Any]], dict[str, Alignment]] = {}


def alignments(metadata_class: type[Any]) -> dict[str, Aligned]:
    """Every field that its class takes, in order; "batch" where nothing was declared."""
    if metadata_class not in _alignments:
        whole = Aligned("batch", 0)
        declared = {f.name: f.metadata.get(_KEY, whole) for f in fields(metadata_class) if f.init}
        _alignments[metadata_class] = declared
    return _alignments[metadata_class]


def added_fields(metadata_class: type[Any], base: type[Any]) -> dict[str, Alignment]:
    """The fields that a subclass has beyond `base` (TypeError for offsets: those are the batch's).

    Fields that the class computes itself (`init=False`) are left to it.
    """
    pair = (metadata_class, base)
    if pair not in _added:
        known, own = alignments(base), alignments(metadata_class)
        added = {name: a for name, (a, _) in own.items() if name not in known}
        for name, alignment in added.items():
            if alignment == "offsets":
                raise TypeError(f"{metadata_class.__name__}: {name} is aligned with offsets")
        _added[pair] = added
    return _added[pair]
