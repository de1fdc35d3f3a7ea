"""Tests of both packages on batches recorded from live engines (../shared/recorded)."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
RECORDED = Path(os.environ.get("ATTNPROOF_RECORDED") or ROOT.parent / "shared" / "recorded")
LLAMA4 = RECORDED / "llama4-chunked-local.vllm-0.11.jsonl.gz"
LOCAL = "make_local_attention_virtual_batches"
DROPPED = {"num_logits_indices"}
"""Fields that vLLM 0.11 drops in local attention (E29)."""


@pytest.fixture(scope="module")
def calls() -> list[dict[str, Any]]:
    """Calls of the local attention function that the engine made."""
    if not LLAMA4.is_file():
        pytest.skip(f"no recorded batches at {LLAMA4}")
    return [call for call in _calls() if call["f"] == LOCAL]


def _calls() -> Iterator[dict[str, Any]]:
    with gzip.open(LLAMA4, "rt") as lines:
        for line in lines:
            yield from json.loads(line)["calls"]


def _value(recorded: Any) -> Any:
    """Return the tensor or number of a recorded field."""
    if not isinstance(recorded, dict):
        return recorded
    if recorded["t"].startswith("scalar"):
        return recorded["v"]
    return torch.tensor(recorded["v"], dtype=getattr(torch, recorded["t"]))


def _metadata(package: Any, recorded: dict[str, Any]) -> Any:
    fields = {name: _value(item) for name, item in recorded.items() if name != "__class__"}
    return package.CommonAttentionMetadata(**fields)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor) else value


def test_local_attention_agrees_with_every_recorded_call(package, calls):
    assert calls
    for call in calls:
        chunk, given, block_size = call["args"]
        metadata = _metadata(package, given)
        assert metadata.logits_indices_padded is None
        assert metadata.num_logits_indices is not None
        virtual = getattr(package, LOCAL)(chunk, metadata, block_size)
        expected = vars(_metadata(package, call["result"]))
        assert virtual.num_logits_indices == metadata.num_logits_indices
        for name in expected.keys() - DROPPED:
            assert _plain(getattr(virtual, name)) == _plain(expected[name]), name


def test_recorded_batches_can_be_divided_and_reduced(package, calls):
    for call in calls:
        metadata = _metadata(package, call["args"][1])
        reduced = package.make_kv_sharing_fast_prefill_common_attn_metadata(metadata)
        assert reduced is metadata
        whole = package.UBatchSlice(
            slice(0, metadata.num_reqs), slice(0, metadata.num_actual_tokens)
        )
        (child,) = package.split_attn_metadata([whole], metadata)
        assert child.slot_mapping.tolist() == metadata.slot_mapping.tolist()
        assert child.num_logits_indices is None
