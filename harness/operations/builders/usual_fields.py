"""The usual fields of a builder's metadata: their names, and the part that a kernel reads."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import torch

from attnproof.harness.cases.batches.tensors import batch_arrays
from attnproof.harness.model.call import MISSING, Free, Outputs
from attnproof.harness.operations.shared.metadata import BatchFacts
from attnproof.reference import MetadataError, split_decodes_and_prefills

TENSORS = {
    "query_start_loc": ("query_start_loc", "cu_seqlens_q", "cu_query_lens"),
    "seq_lens": ("seq_lens", "seq_lens_tensor", "seqused_k", "cache_seqlens"),
    "block_table": ("block_table", "block_tables", "block_table_tensor", "page_table"),
    "slot_mapping": ("slot_mapping",),
}
"""Names that metadata has for each tensor of the batch."""
NUMBERS = ("num_reqs", "num_actual_tokens", "causal")
BOUNDS = ("max_query_len", "max_seq_len")
SPLIT = ("num_decodes", "num_prefills", "num_decode_tokens", "num_prefill_tokens")
FIELDS = (*TENSORS, *NUMBERS, *BOUNDS, *SPLIT)


def held_fields(metadata: Any) -> dict[str, Any]:
    """Return the usual fields that metadata holds; a field that is None is not held."""
    values = {name: _first(metadata, TENSORS.get(name, (name,))) for name in FIELDS}
    return {name: value for name, value in values.items() if value is not MISSING}


def other_tensors(metadata: Any) -> list[str]:
    """Return the names of the tensors of metadata that are under no usual name."""
    usual = {name for names in TENSORS.values() for name in names}
    own: Any = getattr(metadata, "__dataclass_fields__", None)
    names = [*(getattr(metadata, "__dict__", ()) if own is None else own)]
    return [n for n in names if n not in usual and _is_tensor(getattr(metadata, n, None))]


def unmapped(name: str, counts: Free | None) -> str:
    """Return a clause on tensors that a builder's metadata has under names of its own."""
    others, absent = (counts.values["others"], counts.values["absent"]) if counts else ([], [])
    if not absent or not others:
        return ""
    return (
        f"not compared: {', '.join(others)}; of the usual fields it lacks {', '.join(absent)}, "
        f"which a table [builders.{name}] can name"
    )


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim > 0


def _first(metadata: Any, names: tuple[str, ...]) -> Any:
    values = [getattr(metadata, name, None) for name in names]
    return next((value for value in values if value is not None), MISSING)


def read_tensors(held: dict[str, Any], facts: BatchFacts) -> Outputs:
    """Return copies of the tensors among the fields, without what no kernel reads."""
    return {name: _live(name, value, facts) for name, value in held.items() if name in TENSORS}


def _live(name: str, value: Any, facts: BatchFacts) -> Any:
    """Return the rows and tokens of the batch, and of a block table the columns of its blocks."""
    if isinstance(value, list | np.ndarray):
        value = torch.as_tensor(value)
        value = value.to(torch.int32) if value.dtype == torch.int64 else value
    if not isinstance(value, torch.Tensor) or not value.ndim:
        return value
    arrays = batch_arrays(facts.batch)
    rows = arrays.num_reqs
    counts = {"query_start_loc": rows + 1, "slot_mapping": arrays.num_actual_tokens}
    live = value[: counts.get(name, rows)].clone()
    if facts.batch.dtype != "int32":  # as no engine has it: a builder's own buffers are int32
        live = live.to(torch.int64)
    if name != "block_table" or live.ndim != 2:
        return live
    lengths = torch.zeros(len(live), dtype=torch.int64)
    lengths[: len(facts.batch.blocks)] = torch.tensor(
        [len(blocks) for blocks in facts.batch.blocks[: len(live)]], dtype=torch.int64
    )
    live = live[:, : int(lengths.max()) if len(lengths) else 0]
    stale = torch.arange(live.shape[1]) >= lengths[:, None]
    return live.masked_fill(stale.to(live.device), 0)


def possible_splits(metadata: Any, threshold: int) -> set[tuple[int, ...]]:
    """Return the counts of decodes and prefills by the rules that engines have."""
    splits = set[tuple[int, ...]]()
    for options in product((False, True), repeat=2):
        try:
            splits.add(split_decodes_and_prefills(metadata, threshold, *options))
        except MetadataError:  # short extends in a batch that does not tell them
            continue
    return splits
