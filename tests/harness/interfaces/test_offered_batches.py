"""Our functions take and return the batches of vLLM 0.32, and conversion loses no assignment."""

from __future__ import annotations

import copy

import pytest
import torch

from attnproof import optimized, reference
from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.cases.batches.tensors import lay_out
from attnproof.harness.interfaces import offered_as
from attnproof.harness.interfaces.functions import V32, adapt_v32
from attnproof.reference.interface import UBatchSlice

SPLIT = "split_decodes_and_prefills"


@pytest.fixture(params=[reference, optimized], ids=["reference", "optimized"])
def offered(request):
    return offered_as("vllm-0.32", request.param)


def batch_of(query_lens, seq_lens, block_size=16):
    """Return a batch in the class of vLLM 0.32, made from its own fields."""
    offsets = torch.tensor([0, *query_lens], dtype=torch.int32).cumsum(0).to(torch.int32)
    lengths = torch.tensor(seq_lens, dtype=torch.int32)
    columns = -(-max(seq_lens) // block_size)
    tables = torch.arange(len(seq_lens) * columns, dtype=torch.int32).view(len(seq_lens), columns)
    return V32.metadata_class(
        query_start_loc=offsets,
        query_start_loc_cpu=offsets.clone(),
        seq_lens=lengths,
        seq_lens_cpu_upper_bound=lengths.clone(),
        num_reqs=len(seq_lens),
        num_actual_tokens=sum(query_lens),
        max_query_len=max(query_lens),
        max_seq_len=max(seq_lens),
        block_table_tensor=tables,
        slot_mapping=torch.arange(sum(query_lens)),
    )


@pytest.mark.parametrize(
    ("query_lens", "seq_lens", "expected"),
    [
        ([1, 1, 1], [10, 20, 30], (3, 0, 3, 0)),
        ([2, 3, 4], [10, 20, 30], (0, 3, 0, 9)),
        ([1, 1, 4, 2], [10, 20, 30, 2], (2, 2, 2, 6)),
    ],
)
def test_decodes_come_first(offered, query_lens, seq_lens, expected):
    assert offered.split_decodes_and_prefills(batch_of(query_lens, seq_lens)) == expected


def test_a_slice_in_the_middle_of_a_request(offered):
    slice_class = V32.slice_class or UBatchSlice
    parts = [slice_class(slice(0, 2), slice(0, 3)), slice_class(slice(1, 3), slice(3, 9))]
    first, second = offered.split_attn_metadata(parts, batch_of([1, 4, 4], [10, 20, 30]))
    assert type(first) is V32.metadata_class
    assert first.query_start_loc.tolist() == [0, 1, 3]
    assert first.seq_lens.tolist() == [10, 18]
    assert (second.num_reqs, second.num_actual_tokens) == (2, 6)
    assert second.query_start_loc_cpu.tolist() == [0, 2, 6]
    assert second.seq_lens.tolist() == second.seq_lens_cpu_upper_bound.tolist() == [20, 30]
    assert second.slot_mapping.tolist() == [3, 4, 5, 6, 7, 8]


def test_virtual_batches_of_local_attention(offered):
    given = batch_of([4, 10, 5], [6, 17, 9], block_size=2)
    made, table_of = offered.make_local_attention_virtual_batches(4, given, 2)
    assert made.query_start_loc_cpu.diff().tolist() == [2, 2, 1, 4, 4, 1, 4, 1]
    assert made.seq_lens.tolist() == [4, 2, 4, 4, 4, 1, 4, 1]
    assert torch.equal(table_of(given.block_table_tensor), made.block_table_tensor)
    other = table_of(given.block_table_tensor + 100)
    assert (other - made.block_table_tensor).unique().tolist() == [100]


def test_a_batch_of_decodes_for_fast_prefill_comes_back_itself(offered):
    given = batch_of([1, 1], [5, 6])
    assert offered.make_kv_sharing_fast_prefill_common_attn_metadata(given) is given


@pytest.fixture
def metadata():
    return lay_out(make_batch([1, 3], [4, 0], 4, later=True))[0]


def test_what_an_engine_assigns_in_a_batch_is_seen(metadata):
    def split(common_attn_metadata):
        common_attn_metadata.max_seq_len += 1
        common_attn_metadata.is_prefilling = None
        return 1, 1, 1, 3

    before = metadata.max_seq_len
    assert adapt_v32(SPLIT, split)(metadata) == (1, 1, 1, 3)
    assert metadata.max_seq_len == before + 1
    assert metadata.is_prefilling is None


def test_what_an_engine_assigns_in_a_copy_changes_no_argument(metadata):
    def changed(common_attn_metadata):
        made = copy.copy(common_attn_metadata)
        made.max_seq_len = 99
        return made

    before = metadata.max_seq_len
    made = adapt_v32("any", changed)(metadata)
    assert (made is metadata, made.max_seq_len, metadata.max_seq_len) == (False, 99, before)
