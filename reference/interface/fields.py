"""Alignment of batch metadata fields with requests or tokens (SPEC.md section 1).

Each field declares its alignment. Slicing, virtual batches and padding read the
declarations, so a field that is added later, in a subclass too, is handled by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, NamedTuple

Alignment = Literal["offsets", "request", "row keys", "token", "batch"]
"""Entries of a field: requests + 1; one a request; of some requests; one a token; of the batch."""

_KEY, _UPDATED = "alignment", "updated"


class Aligned(NamedTuple):
    """Declaration of one field."""

    alignment: Alignment
    fill: int
    """Value of the entries that padding adds."""


def aligned(alignment: Alignment, *, fill: int = 0, updated: bool = False) -> Mapping[str, Any]:
    """Return the `metadata` of a dataclass field aligned with requests or tokens.

    The first dimension of the field counts them. The field holds a tensor, a numpy array,
    a list, a tuple or None. "request": one entry a request; "token": at least one entry a
    token, stale after `num_actual_tokens`. "row keys": a dict whose keys are row numbers.
    Padding adds entries of value `fill`. Slicing, virtual batches and padding do not change
    a field declared without `aligned`. `updated`: True if a later part of the same engine step
    writes the entries in place, as a drafter adds to lengths.
    """
    return {_KEY: Aligned(alignment, fill), _UPDATED: updated}


_alignments: dict[type[Any], dict[str, Aligned]] = {}
_added: dict[tuple[type[Any], type[Any]], dict[str, Alignment]] = {}


def alignments(metadata_class: type[Any]) -> dict[str, Aligned]:
    """Return the declaration of each `__init__` field, in order; "batch" is the default."""
    if metadata_class not in _alignments:
        whole = Aligned("batch", 0)
        declared = {f.name: f.metadata.get(_KEY, whole) for f in fields(metadata_class) if f.init}
        _alignments[metadata_class] = declared
    return _alignments[metadata_class]


def added_fields(metadata_class: type[Any], base: type[Any]) -> dict[str, Alignment]:
    """Return the alignment of each `__init__` field that a subclass adds to `base`.

    Raise TypeError for a field aligned with offsets: only the batch has those.
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


def kept_fields(metadata_class: type[Any]) -> frozenset[str]:
    """Return the fields whose entries nothing writes from the batch to the end of its step."""
    return frozenset(f.name for f in fields(metadata_class) if not f.metadata.get(_UPDATED))
