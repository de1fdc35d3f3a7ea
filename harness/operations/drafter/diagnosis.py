"""Diagnosis of wrong slots of a drafter."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from attnproof.harness.consumer.batch import expected_tokens, int64_array
from attnproof.harness.model.call import Call


def diagnose_slots(expected: Any, got: Any) -> str:
    """Return the diagnosis of wrong slots, "" if the general one is as good."""
    if not isinstance(got, torch.Tensor) or got.shape != expected.shape:
        return ""
    wrong = expected != got
    if not wrong.any():
        return ""
    if (expected[wrong] == -1).all():
        return "a slot for a token that must have none"
    if (got[wrong] == -1).all():
        return "token without its slot"
    return ""


def of_another_block_size(call: Call, expected: Any, got: Any) -> str:
    """Return a diagnosis if the wrong slots are those of smaller or larger blocks."""
    if not isinstance(got, torch.Tensor) or got.shape != expected.shape:
        return ""
    tokens, slots = expected_tokens(call.facts.batch), int64_array(got)
    wrong = np.flatnonzero(int64_array(expected) != slots)
    if not len(wrong) or wrong[-1] >= len(tokens.positions):
        return ""
    positions, width = tokens.positions[wrong], tokens.table.shape[1]
    for size in (tokens.block_size * 2, tokens.block_size // 2):
        columns = positions // max(size, 1)
        if not size or columns.max() >= width:
            continue
        blocks = tokens.table[tokens.requests[wrong], columns]
        if np.array_equal(slots[wrong], blocks * size + positions % size):
            return "slots of another block size"
    return ""


def diagnose_kept(parent: Any, rejected: np.ndarray, field: str, expected: Any, got: Any) -> str:
    """Return the diagnosis of a wrong field of a batch without rejected tokens, "" for none."""
    if not isinstance(got, torch.Tensor) or not isinstance(expected, torch.Tensor):
        return ""
    values = got.cpu().numpy()
    if field in ("query_start_loc", "query_start_loc_cpu"):
        same = np.array_equal(values, parent.query_start_loc_cpu.numpy())
        return "offsets of the whole batch" if same else ""
    if field in ("seq_lens", "seq_lens_cpu"):
        same = np.array_equal(values, parent.seq_lens_cpu.numpy())
        return "sequences keep their rejected tokens" if same else ""
    if got.shape != expected.shape:
        return "rejected tokens kept" if len(values) > len(expected) else ""
    if field == "token_indices" and np.array_equal(values, np.arange(len(values))):
        return "indices do not leave out the rejected tokens"
    if field == "token_indices_to_sample":
        last = parent.query_start_loc_cpu.numpy()[1:] - 1
        return "samples a rejected token" if np.array_equal(values, last) else ""
    wrong = values != expected.cpu().numpy()
    if field == "num_rejected_tokens" and (rejected[wrong] == 0).all():
        return "a request without drafts loses a token"
    if field == "slot_mapping" and np.isin(values, parent.slot_mapping.cpu().numpy()).all():
        return "slots of other tokens than the kept ones"
    return ""
