"""Tests of the metadata of state-space layers (SPEC.md section 17)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attnproof import reference
from attnproof.reference import CommonAttentionMetadataV32, MetadataError, StateSpaceConfig


@pytest.mark.spec("Example: offsets [0, 3, 3, 9] in chunks of 4")
def test_chunks_end_at_rows_and_multiples(package):
    offsets = torch.tensor([0, 3, 3, 9])
    chunks, last, rows = package.compute_varlen_chunk_metadata(offsets, 4)
    assert chunks.tolist() == [0, 3, 4, 8, 9]
    assert last.tolist() == [0, -1, 3]
    assert rows.tolist() == [0, 2, 2, 2]
    assert {chunks.dtype, last.dtype, rows.dtype} == {torch.int32}


@pytest.mark.spec("Example: H = A = 4, B = 8, alignment 1, sequences [25, 21]")
def test_checkpoints_of_prefills(package):
    rows, sizes = ([25, 21], [21, 5]), (4, 8, 1, False, 4)
    checkpoints = package.compute_mamba_prefill_checkpoints
    assert checkpoints(*rows, *sizes) == ([20, 0], [2, -1])
    assert checkpoints(*rows, *sizes, num_hash_lookahead_tokens=2) == ([16, 0], [2, -1])
    assert checkpoints(*rows, 4, 8, None, False, 4) == ([0, 0], [-1, -1])


def test_a_draft_drops_the_last_block(package):
    checkpoints = package.compute_mamba_prefill_checkpoints
    assert checkpoints([25, 24], [21, 20], 4, 8, 1, True, 4) == ([16, 16], [2, 1])


def _batch(queries, computed, tables, prefilling):
    rows = zip(queries, computed, strict=True)
    offsets = torch.tensor([0, *torch.tensor(queries).cumsum(0).tolist()], dtype=torch.int32)
    lengths = torch.tensor([q + c for q, c in rows], dtype=torch.int32)
    return CommonAttentionMetadataV32(
        query_start_loc=offsets,
        query_start_loc_cpu=offsets.clone(),
        seq_lens=lengths,
        seq_lens_cpu=lengths.clone(),
        num_computed_tokens_cpu=torch.tensor(computed, dtype=torch.int32),
        num_reqs=len(queries),
        num_actual_tokens=sum(queries),
        max_query_len=max(queries),
        max_seq_len=int(lengths.max()),
        block_table_tensor=torch.tensor(tables, dtype=torch.int32),
        slot_mapping=torch.zeros(sum(queries), dtype=torch.int64),
        is_prefilling=torch.tensor(prefilling),
    )


@pytest.mark.spec("Example: B = 4, K = 0, chunks of 4")
def test_a_decode_and_the_chunks_of_a_prefill(package):
    md = _batch([1, 6], [7, 3], [[5, 6, 0], [7, 8, 9]], [False, True])
    built = package.mamba_build(md, StateSpaceConfig(block_size=4, chunk_size=4))
    assert (built.num_decodes, built.num_prefills) == (1, 1)
    assert built.state_indices_tensor_d.tolist() == [[6]]
    assert built.state_indices_tensor_p.tolist() == [9]
    assert built.cu_chunk_seqlen_p.tolist() == [0, 1, 5, 6]
    assert built.seq_idx_p.tolist() == [0, 0, 0]
    assert built.last_chunk_indices_p.tolist() == [2]


@pytest.mark.spec("Example: B = 4, K = 1, a speculative row")
def test_a_speculative_row_and_a_prefill(package):
    md = _batch([2, 3], [5, 0], [[5, 6, 7], [8, 9, 0]], [False, True])
    config = StateSpaceConfig(block_size=4, num_speculative_tokens=1)
    counts = (torch.tensor([values], dtype=torch.int32)[0] for values in ([2, 1], [1, -1]))
    built = package.gdn_build(md, config, *counts)
    assert built.spec_state_indices_tensor.tolist() == [[6, 7]]
    assert built.prefill_state_indices.tolist() == [8]
    assert built.num_accepted_tokens.tolist() == [2]
    assert built.spec_token_indx.tolist() == [0, 1]
    assert built.non_spec_token_indx.tolist() == [2, 3, 4]


@pytest.mark.spec("Example: B = 4, hashed blocks and hits of 4")
@pytest.mark.parametrize("chunk_size", [8, 16])
def test_a_prefill_is_cut_where_it_exports_a_state(package, chunk_size):
    sizes = {"block_size": 4, "chunk_size": chunk_size}
    exports = {"hash_block_size": 4, "cache_hit_alignment_tokens": 4, "checkpoint_alignment": 1}
    md = _batch([10], [0], [[5, 6, 7]], [True])
    built = package.mamba_build(md, StateSpaceConfig(**sizes, **exports))
    assert built.cu_chunk_seqlen_p.tolist() == [0, 8, 10]
    assert built.checkpoint_chunk_idx.tolist() == [0]
    assert built.checkpoint_chunk_idx.dtype is torch.int64


@pytest.mark.spec("Example: B = 4, K = 1, a decode with q = 1")
def test_a_speculative_row_between_a_decode_and_a_prefill(package):
    tables = [[5, 6, 0], [7, 8, 9], [3, 4, 0]]
    md = _batch([1, 2, 3], [7, 5, 0], tables, [False, False, True])
    config = StateSpaceConfig(block_size=4, num_speculative_tokens=1)
    counts = [torch.tensor(counts, dtype=torch.int32) for counts in ([1, 2, 1], [-1, 1, -1])]
    kda = package.kda_build(md, config, *counts)
    assert (kda.num_decodes, kda.num_prefills, kda.num_spec_decodes) == (0, 2, 1)
    assert kda.spec_state_indices_tensor.tolist() == [[8, 9]]
    assert kda.non_spec_state_indices_tensor.tolist() == [6, 3]
    short_conv = package.ple_short_conv_build(md, config, *counts)
    assert (short_conv.num_decodes, short_conv.num_prefills) == (1, 1)
    assert short_conv.spec_state_indices_tensor.tolist() == [8]
    assert short_conv.state_indices_tensor.tolist() == [6, 3]


@pytest.mark.spec("Example: B = 4, K = 1, a prompt of q = 1")
def test_a_prompt_of_one_token_is_a_prefill(package):
    md = _batch([1], [0], [[5, 6]], [True])
    config = StateSpaceConfig(block_size=4, num_speculative_tokens=1)
    for name in ("linear_build", "bailing_build"):
        built = getattr(package, name)(md, config)
        assert (built.num_decodes, built.num_prefills) == (0, 1)
        assert built.state_indices_tensor.tolist() == [5]


@pytest.mark.spec("Example: B = 2, mamba1, tables [[1, 2]] and [[3, 4]]")
def test_a_graph_reads_the_states_of_its_own_group(package):
    config = StateSpaceConfig(layer="mamba1", block_size=2, has_full_graphs=True)
    first, second = (package.StateSpaceBuilder(config) for _ in range(2))
    captured = first.build_for_cudagraph_capture(_batch([1], [0], [[0, 0]], [False]))
    built = first.build(_batch([1], [2], [[1, 2]], [False]))
    table = torch.tensor([[3, 4]], dtype=torch.int32)
    updated = second.update_block_table(built, table, torch.zeros(1, dtype=torch.int64))
    assert built.state_indices_tensor_d.tolist() == [[2]]
    assert updated.state_indices_tensor_d.tolist() == [[4]]
    assert captured.state_indices_tensor_d.tolist() == [[2]]


@pytest.mark.parametrize("name", [name for name in reference.__all__ if name.endswith("_build")])
def test_builders_need_to_know_which_rows_are_in_their_prompt(package, name):
    md = replace(_batch([1], [3], [[5]], [False]), is_prefilling=None)
    with pytest.raises(MetadataError, match="is_prefilling"):
        getattr(package, name)(md, StateSpaceConfig(block_size=4))
