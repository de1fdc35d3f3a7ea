"""Convert batches between our classes and those of the installed vLLM, without copies.

A field that the version lacks is left out, a renamed one gets its name there, and one that
only the version has keeps its default. Both sides hold the same tensors, so that purity and
aliasing are judged on the behaviour of vLLM itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields, make_dataclass
from functools import cache
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from attnproof.harness.adapters.vllm.installed import find
from attnproof.reference.interface import UBatchSlice
from attnproof.reference.shared import CommonAttentionMetadata

UTILS = "v1.attention.backends.utils"
_PLACES = ("v1.attention.backend", UTILS)
_SLICE_PLACES = (("v1.worker.ubatch_utils", "UBatchSlice"), (UTILS, "UbatchSlice"))
_ORIGIN = "_attnproof_origin"
"""Attribute of converted metadata: our metadata that it was made of."""


@cache
def metadata_class() -> Any:
    """Return vLLM's CommonAttentionMetadata."""
    return find(_PLACES, "CommonAttentionMetadata")


@cache
def slice_class() -> Any:
    """Return vLLM's class of a micro-batch, whose name depends on the version."""
    found = (find([place], name) for place, name in _SLICE_PLACES)
    return next((cls for cls in found if cls is not None), None)


def _encoder_tensor(metadata: Any) -> torch.Tensor | None:
    lengths = metadata.encoder_seq_lens
    if lengths is None:
        return None
    return torch.from_numpy(lengths).to(metadata.seq_lens.device)


def _most_logits(metadata: Any) -> int | None:
    """Return the most logits of one request, which later engines count on the host."""
    if metadata.logits_indices_padded is None or metadata.num_logits_indices is None:
        return None
    wanted = metadata.logits_indices_padded[: metadata.num_logits_indices].cpu().numpy()
    offsets = metadata.query_start_loc_cpu.numpy()
    held = np.searchsorted(np.sort(wanted), offsets)
    return int(np.diff(held).max(initial=0))


_RENAMED: dict[str, Callable[[Any], Any]] = {
    "seq_lens_cpu_upper_bound": attrgetter("seq_lens_cpu"),
    "encoder_seq_lens_cpu": attrgetter("encoder_seq_lens"),
    "max_logits_per_req": _most_logits,
}
"""Fields of a later vLLM, with readers of their values from our metadata."""


@cache
def _readers() -> dict[str, Callable[[Any], Any]]:
    """Return vLLM's fields, each with a reader of its value from our metadata."""
    known = {f.name for f in fields(CommonAttentionMetadata)}
    names = {f.name for f in fields(metadata_class()) if f.init}
    readers: dict[str, Callable[[Any], Any]] = {n: attrgetter(n) for n in known & names}
    readers |= {name: read for name, read in _RENAMED.items() if name in names}
    if "encoder_seq_lens_cpu" in names:
        readers["encoder_seq_lens"] = _encoder_tensor
    return readers


@cache
def _subclass(cls: type[Any]) -> type[Any]:
    """Return a subclass of vLLM's class with the fields that a subclass of ours adds."""
    known = {f.name for f in fields(CommonAttentionMetadata)}
    added = [
        (f.name, f.type, None if f.default is MISSING else f.default)
        for f in fields(cls)
        if f.name not in known
    ]
    return make_dataclass(cls.__name__, added, bases=(metadata_class(),))


def theirs(value: Any) -> Any:
    """Convert an argument for vLLM: batches, micro-batches and lists of them."""
    if isinstance(value, CommonAttentionMetadata):
        return _their_metadata(value)
    if type(value) is UBatchSlice:
        return slice_class()(value.request_slice, value.token_slice)
    if type(value) is list and value and type(value[0]) is UBatchSlice:
        return [theirs(one) for one in value]
    return value


def _their_metadata(metadata: CommonAttentionMetadata) -> Any:
    cls, values = metadata_class(), {n: read(metadata) for n, read in _readers().items()}
    kind: Any = type(metadata)
    if kind is not CommonAttentionMetadata:
        cls = _subclass(kind)
        known = {f.name for f in fields(CommonAttentionMetadata)}
        values |= {
            f.name: getattr(metadata, f.name) for f in fields(metadata) if f.name not in known
        }
    made = cls(**values)
    setattr(made, _ORIGIN, metadata)
    return made


def ours(value: Any, given: Any = None) -> Any:
    """Convert a result of vLLM: batches, lists of them, and tuples that begin with one.

    Metadata that `theirs` converted becomes our original object again. `given` is the batch
    of ours from which the result was computed.
    """
    if isinstance(value, metadata_class()):
        return _our_metadata(value, given)
    if type(value) is list:
        return [ours(one, given) for one in value]
    if type(value) is tuple and value and isinstance(value[0], metadata_class()):
        return _our_metadata(value[0], given)
    return value


def _our_metadata(metadata: Any, given: Any) -> CommonAttentionMetadata:
    origin: CommonAttentionMetadata | None = getattr(metadata, _ORIGIN, None)
    if origin is not None:
        return origin
    names = [f.name for f in fields(CommonAttentionMetadata)]
    values = {name: getattr(metadata, name) for name in names if hasattr(metadata, name)}
    if not hasattr(metadata, "seq_lens_cpu"):
        values |= _later_fields(metadata, given)
    return CommonAttentionMetadata(**values)


def _later_fields(metadata: Any, given: Any) -> dict[str, Any]:
    """Return the values of our fields that a later vLLM derives or keeps as a bound.

    Derived computed tokens get the dtype of the given batch.
    """
    computed = metadata.compute_num_computed_tokens()
    if computed.device.type != "cpu":  # a CPU tensor is used as it is
        computed = computed.cpu()
    if given is not None:
        computed = computed.to(given.num_computed_tokens_cpu.dtype)
    return {
        "seq_lens_cpu": metadata.seq_lens_cpu_upper_bound,
        "num_computed_tokens_cpu": computed,
        "encoder_seq_lens": metadata.encoder_seq_lens_cpu,
    }
