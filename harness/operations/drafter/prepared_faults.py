"""Faults of the operations that prepare a drafter's batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from attnproof.harness.model.case import Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.operations.drafter.drafts import rejected_of
from attnproof.harness.operations.shared.faults import metadata_fault

_METADATA = "common_attn_metadata"


def _has_drafts(case: Case) -> bool:
    return any(case.params["drafts"])


def _has_rows(case: Case) -> bool:
    return case.num_requests > 0


def _loses_tokens(case: Case) -> bool:
    return case.num_tokens > 0 and bool(rejected_of(case).any())


def _first_drafted(drafts: list[int]) -> int:
    """Return the first row with drafts."""
    return next(row for row, count in enumerate(drafts) if count)


def _too_many(sampled: list[list[int]], drafts: list[int]) -> list[list[int]]:
    row = _first_drafted(drafts)
    return [*sampled[:row], [11] * (drafts[row] + 2), *sampled[row + 1 :]]


def _long_drafts(drafts: list[int], metadata: Any) -> list[int]:
    row = _first_drafted(drafts)
    return [*drafts[:row], int(metadata.query_start_loc_cpu.diff()[row]), *drafts[row + 1 :]]


def _with_ends(change: Any) -> Any:
    return lambda step: replace(step, cu_num_draft_tokens=change(step.cu_num_draft_tokens))


DROP_FAULTS = {
    "sampled tokens of another batch": Fault(
        "sampled_token_ids", lambda sampled: sampled[:-1], applies=_has_rows
    ),
    "drafts of another batch": Fault("num_draft_tokens", lambda drafts: [*drafts, 0]),
    "more sampled tokens than drafts + 1": Fault(
        "sampled_token_ids", _too_many, applies=_has_drafts, reads=("num_draft_tokens",)
    ),
    "more drafts than queries": Fault(
        "num_draft_tokens", _long_drafts, applies=_has_drafts, reads=(_METADATA,)
    ),
    "negative number of drafts": Fault(
        "num_draft_tokens", lambda drafts: [-1, *drafts[1:]], applies=_has_rows
    ),
    "rank shares of shorter sequences": metadata_fault(
        _METADATA,
        "dcp_local_seq_lens",
        lambda md: {"dcp_local_seq_lens": md.seq_lens.clone()},
        _loses_tokens,
    ),
}

PADDED_FAULTS = {
    "drafts of another batch": Fault(
        "spec_decode_metadata",
        _with_ends(lambda ends: ends[:-1]),
        "cu_num_draft_tokens",
        applies=_has_rows,
    ),
    "float drafts": Fault(
        "spec_decode_metadata", _with_ends(torch.Tensor.float), "cu_num_draft_tokens"
    ),
    "drafts whose sum falls": Fault(
        "spec_decode_metadata",
        _with_ends(lambda ends: -1 - ends),
        "cu_num_draft_tokens",
        applies=_has_rows,
        cpu_only=True,
    ),
    "more drafts than queries": Fault(
        "spec_decode_metadata",
        _with_ends(lambda ends: ends + 1_000_000),
        "cu_num_draft_tokens",
        applies=_has_rows,
        cpu_only=True,
    ),
    "more accepted than drafts + 1": Fault(
        "valid_sampled_tokens_count",
        lambda counts: counts + 1_000_000,
        applies=_has_rows,
        cpu_only=True,
    ),
}
