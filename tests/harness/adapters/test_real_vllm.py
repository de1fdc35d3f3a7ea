"""The adapter on the installed vLLM, which the tox environments vllm-* have."""

from __future__ import annotations

import importlib
from importlib.util import find_spec

import pytest
import torch

from attnproof.harness.cases.batches.tensors import lay_out
from attnproof.harness.model.case import Batch
from attnproof.harness.operations import ALL
from attnproof.harness.running.candidates import resolve, version_of
from attnproof.harness.running.loading import offered_by
from attnproof.reference import CacheGroup, CacheRequest

pytestmark = pytest.mark.skipif(
    find_spec("vllm") is None, reason="vLLM is not installed: `tox run -e vllm-0.11` has it"
)
OFFERED = {"0.10.2": 34, "0.11.2": 24, "0.32.0": 43, "0.33.0": 43}
"""Least number of operations by release: fewer mean that a module was not found."""
LOCAL = "make_local_attention_virtual_batches"


@pytest.fixture(scope="module")
def adapter():
    return importlib.import_module("attnproof.harness.adapters.vllm")


def test_the_release_is_that_of_the_package(adapter):
    [candidate] = resolve(["vllm"], "cpu")
    assert version_of(candidate).partition("+")[0] == adapter.VERSION


def test_all_operations_of_the_release_are_found(adapter):
    offered = [one for one in ALL.values() if offered_by(adapter, one) is not None]
    if adapter.VERSION not in OFFERED:
        pytest.skip(f"no number of operations is known of {adapter.VERSION}")
    assert len(offered) >= OFFERED[adapter.VERSION]


@pytest.fixture
def example():
    """The batch of SPEC.md section 4: queries of 4, 10 and 5 tokens, blocks of two tokens."""
    rows = (range(3), range(10, 19), range(20, 25))
    batch = Batch(2, (4, 10, 5), (2, 7, 4), tuple(map(tuple, rows)), spare_columns=1)
    return lay_out(batch)[0]


def test_the_specifications_example_of_local_attention(adapter, example):
    virtual = getattr(adapter, LOCAL)(4, example, 2)
    assert virtual.query_start_loc.tolist() == [0, 2, 4, 5, 9, 13, 14, 18, 19]
    assert virtual.seq_lens.tolist() == [4, 2, 4, 4, 4, 1, 4, 1]
    assert virtual.num_computed_tokens_cpu.tolist() == [2, 0, 3, 0, 0, 0, 0, 0]
    assert virtual.block_table_tensor[:, 0].tolist() == [0, 2, 12, 14, 16, 18, 22, 24]


def test_the_clock_gets_vllms_own_function_and_batch(adapter, example):
    thunk = getattr(adapter, LOCAL).bind(4, example, 2)
    assert thunk.func.__module__.startswith("vllm.")
    converted = thunk.args[1]
    assert type(converted).__module__.startswith("vllm.")
    assert converted.query_start_loc is example.query_start_loc
    assert converted.block_table_tensor is example.block_table_tensor
    made = thunk()
    made = made[0] if isinstance(made, tuple) else made
    assert isinstance(made, type(converted))


def test_erratum_e1_shows_on_every_release(adapter, example):
    """E1, a numpy scalar, would be absent if the conversion changed vLLM's result."""
    assert type(getattr(adapter, LOCAL)(4, example, 2).max_query_len) is not int


def test_slots_of_the_specification(adapter):
    if "build_slot_mapping" in adapter.NOT_OFFERED:
        pytest.skip(adapter.NOT_OFFERED["build_slot_mapping"])
    offsets = torch.tensor([0, 2, 5], dtype=torch.int32)
    computed = torch.tensor([3, 6], dtype=torch.int32)
    table = torch.tensor([[7, 9, 1], [4, 5, 6]], dtype=torch.int32)
    made = adapter.build_slot_mapping(offsets, computed, table, 4, num_padded_tokens=6)
    assert made.tolist() == [31, 36, 22, 23, 24, -1]


def test_the_manager_is_vllms_own(adapter):
    if not hasattr(adapter, "KVCacheManager"):
        pytest.skip(adapter.NOT_OFFERED["KVCacheManager"])
    manager = adapter.KVCacheManager(6, [CacheGroup("full", 4)], 32)
    assert type(manager._manager).__module__ == "vllm.v1.core.kv_cache_manager"
    first, other = CacheRequest("a", list(range(10))), CacheRequest("b", [*range(8), 50])
    assert manager.allocate_slots(first, 10).get_block_ids() == ([1, 2, 3],)
    manager.free(first)
    blocks, hits = manager.get_computed_blocks(other)
    assert (blocks.get_block_ids(), hits) == (([1, 2],), 8)
    manager.allocate_slots(other, 1, hits, blocks)
    assert manager.get_block_ids("b") == ([1, 2, 3],)
    assert (manager.num_free_blocks, manager.reset_prefix_cache()) == (2, False)
