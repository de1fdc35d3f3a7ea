"""Values of a recording: tensors, batches and plain numbers, from JSON and back."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import torch

from attnproof.reference.shared import CommonAttentionMetadata, CommonAttentionMetadataV32

_DTYPES: dict[str, Any] = {
    "int32": np.int32,
    "int64": np.int64,
    "bool": np.bool_,
    "float32": np.float32,
    "uint8": np.uint8,
}
_MOST_ELEMENTS = 1 << 26
_CLASS = "__class__"
_V32_FIELDS = frozenset(f.name for f in fields(CommonAttentionMetadataV32)) - {
    f.name for f in fields(CommonAttentionMetadata)
}


class ValueProblem(ValueError):  # noqa: N818 - a reason for a refusal, not a fault of ours
    """Reason why a value of a recording cannot be used."""


def array_of(value: Any, name: str) -> np.ndarray:
    """Return the array of a recorded tensor (ValueProblem)."""
    if not isinstance(value, dict) or "v" not in value or value.get("t") not in _DTYPES:
        raise ValueProblem(f"{name} is no tensor of a known dtype")
    dtype = _DTYPES[value["t"]]
    try:
        wide = np.array(value["v"], dtype=np.float64 if dtype is np.float32 else np.int64)
    except (ValueError, TypeError, OverflowError):
        raise ValueProblem(f"{name} has entries that are no numbers of one shape") from None
    array = wide.astype(dtype)
    if wide.size > _MOST_ELEMENTS or (array != wide).any():
        raise ValueProblem(f"{name} has entries that {value['t']} does not hold")
    return array


def value_of(value: Any, name: str) -> Any:
    """Return an argument of a recorded call; None for an object that was not recorded."""
    if isinstance(value, dict):
        if _CLASS in value:
            return metadata_of(value)
        if "v" in value:
            return torch.from_numpy(array_of(value, name))
        return None
    if isinstance(value, list):
        return [value_of(item, name) for item in value]
    return value


def metadata_of(cam: dict[str, Any]) -> CommonAttentionMetadata:
    """Return recorded metadata in our class (ValueProblem).

    Mirrors that later engines do not have follow from the device tensors.
    """
    tensors: dict[str, Any] = {}
    for name, value in cam.items():
        if isinstance(value, dict) and "v" in value:
            scalar = not isinstance(value["v"], list | np.ndarray)
            tensors[name] = value["v"] if scalar else torch.from_numpy(array_of(value, name))
        elif name != _CLASS:
            tensors[name] = value
    for name in ("query_start_loc_cpu", "seq_lens", "block_table_tensor", "slot_mapping"):
        if not isinstance(tensors.get(name), torch.Tensor):
            raise ValueProblem(f"{name} is missing")
    offsets, lengths = tensors["query_start_loc_cpu"], tensors["seq_lens"]
    if offsets.ndim != 1 or lengths.ndim != 1 or len(offsets) != len(lengths) + 1:
        raise ValueProblem("query_start_loc_cpu and seq_lens do not belong together")
    tensors.setdefault("query_start_loc", offsets.clone())
    tensors.setdefault("seq_lens_cpu", lengths.clone())
    tensors.setdefault("num_computed_tokens_cpu", lengths - offsets.diff())
    for name in ("encoder_seq_lens", "req_idx"):
        if isinstance(tensors.get(name), torch.Tensor):
            tensors[name] = tensors[name].numpy()
    cls = CommonAttentionMetadataV32 if _V32_FIELDS & tensors.keys() else CommonAttentionMetadata
    known = {f.name for f in fields(cls)}
    try:
        return cls(**{name: value for name, value in tensors.items() if name in known})
    except TypeError as error:
        raise ValueProblem(f"the metadata is incomplete ({error})") from None
