"""Convert batches between our classes and those of an engine, without copies.

A field that the engine lacks is left out, a renamed one gets its name there, and one that
only the engine has keeps its default. Both sides hold the same tensors, so that purity and
aliasing are judged on the behaviour of the engine itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, field, fields, make_dataclass
from functools import cache, cached_property
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from attnproof.reference.interface import UBatchSlice
from attnproof.reference.shared import CommonAttentionMetadata, CommonAttentionMetadataV32

_ORIGIN = "_attnproof_origin"
"""Attribute of converted metadata: our metadata that it was made of."""
_CONVERTED = "_attnproof_given"
"""Attribute of converted metadata: its id, which a copy does not share, and values by field."""
_OURS = tuple(f.name for f in fields(CommonAttentionMetadata))
_V32 = tuple(f.name for f in fields(CommonAttentionMetadataV32))


def _bound(metadata: Any) -> torch.Tensor:
    """Return the bound of the lengths, which later engines have in place of the mirror."""
    bound: torch.Tensor | None = getattr(metadata, "seq_lens_cpu_upper_bound", None)
    lengths: torch.Tensor = metadata.seq_lens_cpu
    return lengths if bound is None else bound


def _encoder_tensor(metadata: Any) -> torch.Tensor | None:
    lengths = metadata.encoder_seq_lens
    if lengths is None:
        return None
    return torch.from_numpy(lengths).to(metadata.seq_lens.device)


def _most_logits(metadata: Any) -> int | None:
    """Return the most logits of one request, which later engines count on the host."""
    if metadata.logits_indices_padded is None or metadata.num_logits_indices is None:
        return getattr(metadata, "max_logits_per_req", None)
    wanted = metadata.logits_indices_padded[: metadata.num_logits_indices].cpu().numpy()
    offsets = metadata.query_start_loc_cpu.numpy()
    held = np.searchsorted(np.sort(wanted), offsets)
    return int(np.diff(held).max(initial=0))


_RENAMED: dict[str, Callable[[Any], Any]] = {
    "seq_lens_cpu_upper_bound": _bound,
    "encoder_seq_lens_cpu": attrgetter("encoder_seq_lens"),
    "max_logits_per_req": _most_logits,
    # From 0.15 to 0.28 the mirrors are properties, of fields that the engine's runner fills.
    "_seq_lens_cpu": attrgetter("seq_lens_cpu"),
    "_num_computed_tokens_cpu": attrgetter("num_computed_tokens_cpu"),
}
"""Fields of a later vLLM, with readers of their values from our metadata."""
_ORIGINS = {
    "encoder_seq_lens_cpu": "encoder_seq_lens",
    "encoder_seq_lens": "",
    "_seq_lens_cpu": "seq_lens_cpu",
    "_num_computed_tokens_cpu": "num_computed_tokens_cpu",
}
"""Our names of renamed fields, "" for one that is derived from another."""


class Conversion:
    """Conversion to the classes of one engine, and back."""

    def __init__(
        self, metadata_class: Callable[[], Any], slice_class: Callable[[], Any] = lambda: None
    ) -> None:
        """`metadata_class` and `slice_class` return the engine's classes, imported when used."""
        self._metadata_class = metadata_class
        self._slice_class = slice_class

    @cached_property
    def metadata_class(self) -> Any:
        """The engine's CommonAttentionMetadata."""
        return self._metadata_class()

    @cached_property
    def slice_class(self) -> Any:
        """The engine's class of a micro-batch, None without one."""
        return self._slice_class()

    @cached_property
    def _readers(self) -> dict[str, Callable[[Any], Any]]:
        """The engine's fields, each with a reader of its value from our metadata."""
        names = {f.name for f in fields(self.metadata_class) if f.init}
        readers: dict[str, Callable[[Any], Any]] = {
            name: attrgetter(name) if name in _OURS else _optional(name)
            for name in _V32
            if name in names
        }
        readers |= {name: read for name, read in _RENAMED.items() if name in names}
        if "encoder_seq_lens_cpu" in names:
            readers["encoder_seq_lens"] = _encoder_tensor
        return readers

    def theirs(self, value: Any) -> Any:
        """Convert an argument: batches, micro-batches and lists of them."""
        if isinstance(value, CommonAttentionMetadata):
            return self._their_metadata(value)
        if type(value) is UBatchSlice and self.slice_class is not None:
            return self.slice_class(value.request_slice, value.token_slice)
        if type(value) is list and value and type(value[0]) is UBatchSlice:
            return [self.theirs(entry) for entry in value]
        return value

    def _their_metadata(self, metadata: CommonAttentionMetadata) -> Any:
        cls = self.metadata_class
        values = {name: read(metadata) for name, read in self._readers.items()}
        kind: Any = type(metadata)
        if kind not in (CommonAttentionMetadata, CommonAttentionMetadataV32):
            cls = subclass_with(cls, kind, CommonAttentionMetadata)
            named = {*_OURS, *self._readers}
            added = [f.name for f in fields(metadata) if f.init and f.name not in named]
            values |= {name: getattr(metadata, name) for name in added}
        converted = cls(**values)
        setattr(converted, _ORIGIN, metadata)
        setattr(converted, _CONVERTED, (id(converted), values))
        return converted

    def detached(self, metadata: CommonAttentionMetadata) -> Any:
        """Return the engine's metadata for ours as the engine would have made it.

        It is not converted back to our object, and its optional fields are as ours.
        """
        converted = self._their_metadata(metadata)
        for name in _RENAMED:
            if name in _V32 and hasattr(converted, name):
                setattr(converted, name, getattr(metadata, name, None))
        delattr(converted, _ORIGIN)
        delattr(converted, _CONVERTED)
        return converted

    def write_back(self, value: Any) -> None:
        """Assign the fields that the engine assigned in converted metadata to ours.

        Lists of metadata are written back too; other values are left as they are.
        """
        if type(value) is list:
            for entry in value:
                self.write_back(entry)
        origin = origin_of(value)
        if origin is None:
            return
        values = getattr(value, _CONVERTED)[1]
        for name, before in values.items():
            now = getattr(value, name, None)
            if now is before or (isinstance(before, int) and now == before):
                continue
            target = _ORIGINS.get(name, name)
            if name == "seq_lens_cpu_upper_bound" and not hasattr(origin, name):
                target = "seq_lens_cpu"
            if target:
                setattr(origin, target, now)
            values[name] = now

    def ours(self, value: Any, batch: Any = None) -> Any:
        """Convert a result: batches, and lists and tuples of them.

        Metadata that `theirs` converted becomes our original object again. `batch` is the
        batch of ours from which the result was computed.
        """
        if isinstance(value, self.metadata_class):
            return self._our_metadata(value, batch)
        if type(value) is list:
            return [self.ours(entry, batch) for entry in value]
        if type(value) is tuple and any(isinstance(v, self.metadata_class) for v in value):
            return tuple(self.ours(entry, batch) for entry in value)
        return value

    def _our_metadata(self, metadata: Any, batch: Any) -> CommonAttentionMetadata:
        origin = origin_of(metadata)
        if origin is not None:
            self.write_back(metadata)
            return origin
        is_later = _is_later(batch)
        cls: Any = CommonAttentionMetadataV32 if is_later else CommonAttentionMetadata
        if type(metadata) is not self.metadata_class:  # a copy of a subclass's object
            cls = type(batch)
        names = [f.name for f in fields(cls) if f.init]
        values = _derived(metadata, batch)
        values |= {
            name: getattr(metadata, name)
            for name in names
            if name not in values and hasattr(metadata, name)
        }
        converted: CommonAttentionMetadata = cls(**values)
        return converted


def origin_of(value: Any) -> CommonAttentionMetadata | None:
    """Return our metadata that an engine's was made of, None for any other object."""
    known, _ = getattr(value, _CONVERTED, (None, None))
    origin: CommonAttentionMetadata | None = getattr(value, _ORIGIN, None)
    return origin if known == id(value) else None


def _is_later(metadata: Any) -> bool:
    """True if a batch of ours has the fields of section 9, whatever its class."""
    return hasattr(metadata, "seq_lens_cpu_upper_bound")


def _optional(name: str) -> Callable[[Any], Any]:
    return lambda metadata: getattr(metadata, name, None)


@cache
def subclass_with(base: type[Any], cls: type[Any], but: type[Any]) -> type[Any]:
    """Return a subclass of `base` with the fields of `cls` that neither it nor `but` has."""
    known = {f.name for owner in (base, but) for f in fields(owner)}
    added = [
        (
            f.name,
            f.type,
            field(default=None if f.default is MISSING else f.default, metadata=f.metadata),
        )
        for f in fields(cls)
        if f.name not in known and f.init
    ]
    return make_dataclass(cls.__name__, added, bases=(base,))


def _mirrors(metadata: Any) -> dict[str, Any]:
    """Return the mirrors that an engine keeps behind properties, and does not read these.

    A property of an empty mirror would make one that is the device's own tensor on a CPU.
    """
    lengths, computed = metadata._seq_lens_cpu, metadata._num_computed_tokens_cpu
    lengths = metadata.seq_lens.cpu().clone() if lengths is None else lengths
    if computed is None:
        computed = lengths - metadata.query_start_loc_cpu.diff()
    return {"seq_lens_cpu": lengths, "num_computed_tokens_cpu": computed}


def _derived(metadata: Any, batch: Any) -> dict[str, Any]:
    """Return the values of our fields that the engine has in another form."""
    if hasattr(metadata, "_seq_lens_cpu"):
        values = _mirrors(metadata)
    else:
        values = {} if hasattr(metadata, "seq_lens_cpu") else _without_mirrors(metadata, batch)
    if hasattr(metadata, "encoder_seq_lens_cpu"):
        values["encoder_seq_lens"] = metadata.encoder_seq_lens_cpu
    return values


def _without_mirrors(metadata: Any, batch: Any) -> dict[str, Any]:
    """Return the mirrors of an engine that derives them or keeps a bound.

    Derived computed tokens get the dtype of the given batch.
    """
    computed = metadata.compute_num_computed_tokens()
    if computed.device.type != "cpu":  # a CPU tensor is used as it is
        computed = computed.cpu()
    if batch is not None:
        computed = computed.to(batch.num_computed_tokens_cpu.dtype)
    exact = not _is_later(batch)
    lengths = metadata.seq_lens_cpu_upper_bound if exact else metadata.seq_lens.clone()
    return {"seq_lens_cpu": lengths, "num_computed_tokens_cpu": computed}
