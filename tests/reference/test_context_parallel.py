"""Tests of the ranks of context parallelism: shares, slots, chunks (SPEC.md section 10)."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.spec("Example: s = [10], N = 2, I = 4 gives [[6, 4]]")
def test_worked_example(package):
    lengths = torch.tensor([10], dtype=torch.int32)
    shares = package.get_dcp_local_seq_lens(lengths, 2, cp_kv_cache_interleave_size=4)
    assert shares.tolist() == [[6, 4]]
    assert shares.dtype == torch.int32


@pytest.mark.spec("E56: 0.11 drops the axis of ranks where there is one rank")
def test_one_rank_keeps_its_axis(package):
    assert package.get_dcp_local_seq_lens(torch.tensor([10, 3])).tolist() == [[10], [3]]


@pytest.mark.parametrize("rank", [1, torch.tensor([1], dtype=torch.int32)])
def test_one_rank_has_the_shape_of_the_lengths(package, rank):
    lengths = torch.tensor([10, 3, 0])
    assert package.get_dcp_local_seq_lens(lengths, 2, rank, 4).tolist() == [4, 0, 0]


@pytest.mark.spec("E82: published code computes rank times interleave in 32 bits")
@pytest.mark.parametrize("rank", [2, torch.tensor([2], dtype=torch.int32)])
def test_rank_times_interleave_beyond_int32(package, rank):
    lengths = torch.tensor([5, 2**31 - 1], dtype=torch.int32)
    share = package.get_dcp_local_seq_lens(lengths, 4, rank, 2**31 - 1)
    assert share.tolist() == [0, 0]  # all of both lengths is on rank 0


def test_a_rank_beyond_the_ranks_is_refused(package):
    for rank in (2, torch.tensor([2], dtype=torch.int32)):
        with pytest.raises(package.MetadataError, match="dcp_rank"):
            package.get_dcp_local_seq_lens(torch.tensor([10]), 2, rank)


def slots(package, query_lens, computed, rows, block_size, size, rank, interleave, **more):
    offsets = torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32)
    computed, table = (torch.tensor(x, dtype=torch.int32) for x in (computed, rows))
    ranks = {"cp_size": size, "cp_rank": rank, "cp_interleave": interleave}
    return package.build_slot_mapping(
        offsets, computed, table, block_size, **ranks, **more
    ).tolist()


@pytest.mark.spec("Example: B = 4, N = 2, I = 2, ten tokens from position 0 and blocks [5, 9] give")
def test_slots_of_two_ranks(package):
    batch = [10], [0], [[5, 9]], 4, 2
    assert slots(package, *batch, 0, 2) == [20, 21, -1, -1, 22, 23, -1, -1, 36, 37]
    assert slots(package, *batch, 1, 2) == [-1, -1, 20, 21, -1, -1, 22, 23, -1, -1]


def test_one_rank_is_the_plain_mapping(package):
    batch = [3, 2], [6, 1], [[5, 9, 7], [1, 2, 3]], 4
    plain = slots(package, *batch, 1, 0, 1)
    assert plain == [38, 39, 28, 5, 6]
    assert slots(package, *batch, 1, 0, 4) == plain


@pytest.mark.parametrize(("size", "interleave"), [(1, 1), (2, 1), (2, 4), (3, 2), (8, 8)])
def test_each_token_is_written_on_one_rank_and_found_there(package, size, interleave):
    block_size, blocks, tokens = 8, [7, 3, 9, 4, 1], 33
    kept: dict[int, int] = {}
    for rank in range(size):
        made = slots(package, [tokens], [0], [blocks], block_size, size, rank, interleave)
        written = [slot for slot in made if slot >= 0]
        # A rank's positions are dense and in order in the blocks of its row.
        dense = [blocks[i // block_size] * block_size + i % block_size for i in range(len(written))]
        assert written == dense
        kept |= {token: rank for token, slot in enumerate(made) if slot >= 0}
        length = torch.tensor([tokens])
        share = package.get_dcp_local_seq_lens(length, size, rank, interleave)
        assert share.tolist() == [len(written)]
    assert kept == {token: token // interleave % size for token in range(tokens)}


def test_slots_of_a_rank_beyond_int32(package):
    made = slots(package, [3], [30], [[1, 2**27 + 1]], 16, 2, 0, 1)
    assert made == [31, -1, 2**31 + 16]


def test_a_window_and_a_narrow_table_mask_slots_of_a_rank(package):
    first_kept = torch.tensor([4], dtype=torch.int32)
    made = slots(package, [12], [0], [[5]], 4, 2, 0, 2, start_idx=first_kept)
    assert made == [-1, -1, -1, -1, 22, 23, -1, -1, -1, -1, -1, -1]


@pytest.mark.parametrize(
    ("ranks", "field"),
    [
        ((0, 0, 1), "cp_size"),
        ((2, 2, 1), "cp_rank"),
        ((1, 1, 1), "cp_rank"),
        ((2, -1, 1), "cp_rank"),
        ((2, 0, 0), "cp_interleave"),
        ((2, 0, 3), "cp_interleave is 3, expected a divisor of block_size = 4"),
        ((1, 0, 3), "cp_interleave"),
    ],
)
def test_ranks_out_of_range_are_refused(package, ranks, field):
    with pytest.raises(package.MetadataError, match=field):
        slots(package, [1], [0], [[1]], 4, *ranks)


def local_lengths(package, lengths, rows, size, rank, interleave, **more):
    buffer = torch.full((rows,), 99, dtype=torch.int32)
    lengths = torch.tensor(lengths, dtype=torch.int32)
    given = len(lengths) if "num_reqs" not in more else more.pop("num_reqs")
    result = package.prepare_dcp_local_seq_lens(
        buffer, lengths, given, size, rank, interleave, **more
    )
    return buffer, result


@pytest.mark.spec("Example: s = [10, 3], N = 2, I = 4, rank 0 and a buffer of five rows give")
def test_a_buffer_is_written_to_its_end(package):
    buffer, result = local_lengths(package, [10, 3], 5, 2, 0, 4, num_reqs_padded=3)
    assert buffer.tolist() == [6, 3, 0, 0, 0]
    assert result.tolist() == [6, 3, 0]
    assert result.data_ptr() == buffer.data_ptr()


def test_stale_lengths_are_not_read(package):
    buffer, result = local_lengths(package, [10, -7, 5], 3, 2, 1, 4, num_reqs=1)
    assert buffer.tolist() == result.tolist() == [4, 0, 0]


def test_padded_rows_below_the_requests_are_refused(package):
    with pytest.raises(package.MetadataError, match="num_reqs_padded is 1, expected at least 2"):
        local_lengths(package, [10, 3], 5, 2, 0, 4, num_reqs_padded=1)
    with pytest.raises(package.MetadataError, match="dcp_local_seq_lens is of length 1"):
        local_lengths(package, [10, 3], 1, 2, 0, 4)


def runs(package, lengths, *more, dtype=torch.int32):
    return package.split_prefill_chunks(torch.tensor(lengths, dtype=dtype), *more)


@pytest.mark.spec("Example: lengths [5, 3, 4, 8, 1], workspace 8, offset 2 →")
def test_runs_of_prefills(package):
    made = runs(package, [5, 3, 4, 8, 1], 8, 2)
    assert made == [(2, 4), (4, 5), (5, 6), (6, 7)]
    assert {type(bound) for run in made for bound in run} == {int}


def test_sums_of_lengths_do_not_overflow(package):
    longest = 2**31 - 1
    assert runs(package, [longest, longest], longest) == [(0, 1), (1, 2)]
    assert runs(package, [], 4, 7, dtype=torch.int64) == []


def test_a_prefill_beyond_the_workspace_is_refused(package):
    text = r"seq_lens_cpu\[1\] is 9, expected 0 to workspace_size = 8"
    with pytest.raises(package.MetadataError, match=text):
        runs(package, [1, 9], 8)
