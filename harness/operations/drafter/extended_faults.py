"""Faults of the operations that extend a batch's queries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from attnproof.harness.model.case import Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.operations.shared.faults import (
    metadata_fault,
    metadata_faults,
    wrong_type,
    wrong_value,
)
from attnproof.harness.operations.shared.metadata import batch_of


def _has_tokens(case: Case) -> bool:
    return case.num_tokens > 0


def _was_live(case: Case) -> bool:
    """True if the batch has tokens before it is extended."""
    return bool(batch_of(case).num_tokens > case.params["more"] * case.num_requests)


def _grows(case: Case) -> bool:
    return case.params["more"] > 0 and _was_live(case)


def _was_live_and(applies: Callable[[Case], bool], case: Case) -> bool:
    return _was_live(case) and applies(case)


def _batch_faults(parameter: str) -> dict[str, Fault]:
    """Return the faults of metadata, for cases with tokens in the batch that is given."""
    faults = metadata_faults(parameter, sequences=True)
    return {
        name: replace(fault, applies=partial(_was_live_and, fault.applies))
        for name, fault in faults.items()
    }


EXTEND_FAULTS = {
    **_batch_faults("common_attn_metadata"),
    "metadata of another type": wrong_type("common_attn_metadata", "metadata"),
    "negative number of tokens to add": wrong_value("N", -1),
    "number of tokens of another type": wrong_type("N"),
    "arange of another type": wrong_type("arange"),
    "float arange": Fault("arange", torch.Tensor.float),
    "short arange": Fault("arange", lambda counts: counts[:0]),
    "arange that starts at 1": Fault("arange", lambda counts: counts + 1, cpu_only=True),
    "slots of another type": wrong_type("new_slot_mapping"),
    "int32 slots": Fault("new_slot_mapping", torch.Tensor.int),
    "short slots": Fault("new_slot_mapping", lambda slots: slots[:0], applies=_has_tokens),
    "rank shares of longer sequences": metadata_fault(
        "common_attn_metadata",
        "dcp_local_seq_lens",
        lambda md: {"dcp_local_seq_lens": md.seq_lens.clone()},
        _grows,
    ),
}

SLOT_FAULTS = {
    **_batch_faults("cad"),
    "metadata of another type": wrong_type("cad", "metadata"),
    "block size of 0": wrong_value("block_size", 0),
    "negative number of new tokens": wrong_value("num_new_tokens", -1),
    "model of no position": wrong_value("max_model_len", 0),
    "positions of another type": wrong_type("new_positions"),
    "float positions": Fault("new_positions", torch.Tensor.float),
    "positions of another batch": Fault(
        "new_positions", lambda positions: positions[:-1], applies=_has_tokens
    ),
    "negative positions": Fault(
        "new_positions", lambda positions: -1 - positions, applies=_has_tokens, cpu_only=True
    ),
    "mask that is no bool": Fault("is_rejected_token_mask", torch.Tensor.int),
    "mask of another type": wrong_type("is_rejected_token_mask"),
    "mask of another batch": Fault(
        "is_rejected_token_mask", lambda mask: mask[:-1], applies=_has_tokens
    ),
}
