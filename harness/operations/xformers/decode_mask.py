"""Outputs and violations of xformers' mask of a batch's decodes."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from attnproof.harness.model.call import MISSING, Outputs
from attnproof.harness.model.violation import Violation
from attnproof.reference.xformers_backend import DecodeMask

PACKAGE = "xformers"
MASK = "PagedBlockDiagonalCausalWithOffsetPaddedKeysMask"
"""Name of xformers' class of masks; its stand-in is the reference's `DecodeMask`."""
_QUERIES = ("seqstart", "seqstart_py", "max_seqlen", "min_seqlen")
_KEYS = (*_QUERIES, "seqlen", "seqlen_py", "padding")
MASK_LENGTHS = {
    f"attn_bias.{part}.{name}": (part, name)
    for part, names in (("q_seqinfo", _QUERIES), ("k_seqinfo", _KEYS))
    for name in names
}
"""Part of the mask and attribute of the part, by output field."""


def mask_outputs(mask: Any) -> Outputs:
    """Return the attributes of a candidate's mask, none without xformers."""
    if find_spec(PACKAGE) is None:
        return {}
    if mask is None:
        return {"attn_bias": None}
    outputs: Outputs = {"attn_bias": mask_name(mask)}
    for field, (part, name) in MASK_LENGTHS.items():
        outputs[field] = getattr(getattr(mask, part, None), name, MISSING)
    for name in ("block_tables", "page_size"):
        outputs[f"attn_bias.{name}"] = getattr(mask, name, MISSING)
    return outputs


def mask_name(mask: Any) -> str:
    """Return the name of the mask's class, `MASK` for the stand-in and for subclasses."""
    theirs = (kind.__name__ == MASK for kind in type(mask).__mro__ if _of_xformers(kind))
    return MASK if type(mask) is DecodeMask or any(theirs) else type(mask).__name__


def _of_xformers(kind: type) -> bool:
    return kind.__module__.split(".")[0] == PACKAGE


def mask_violations(arrays: Any, rows: int, room: int, outputs: Outputs) -> Iterator[Violation]:
    """Check that the mask's tensors and lists agree with the batch."""
    live = ~arrays.stale_blocks[:rows]
    expected = {
        "q_seqinfo.seqstart": arrays.query_start_loc[: rows + 1].tolist(),
        "k_seqinfo.seqstart": [row * room for row in range(rows + 1)],
        "k_seqinfo.seqlen": arrays.seq_lens[:rows].tolist(),
    }
    for name, values in expected.items():
        tensor, listed = outputs[f"attn_bias.{name}"], outputs[f"attn_bias.{name}_py"]
        if tensor.tolist() != values:
            yield Violation(f"attn_bias.{name}", "does not agree with the batch")
        if list(listed) != values:
            yield Violation(f"attn_bias.{name}_py", "does not agree with the batch")
        if tensor.dtype != torch.int32 or not tensor.is_contiguous():
            yield Violation(f"attn_bias.{name}", "is not dense int32, as the kernel reads it")
    lengths = {"q_seqinfo": np.diff(arrays.query_start_loc), "k_seqinfo": arrays.seq_lens}
    for part, values in lengths.items():
        for name, value in (("max", values[:rows].max()), ("min", values[:rows].min())):
            if outputs[f"attn_bias.{part}.{name}_seqlen"] != value:
                yield Violation(f"attn_bias.{part}.{name}_seqlen", f"is not {value}")
    table = outputs["attn_bias.block_tables"].cpu().numpy()
    if table.shape != live.shape or (table[live] != arrays.block_table[:rows][live]).any():
        yield Violation("attn_bias.block_tables", "has not the blocks of its rows")
