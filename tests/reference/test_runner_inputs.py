"""Tests of a step's inputs in model runner V2 (SPEC.md section 13)."""

from __future__ import annotations

import pytest
import torch


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.spec("Example: q = [2, 3] of slots 1 and 0, num_computed_tokens [4, 7], four lengths")
def test_positions(package):
    pos, seq_lens = torch.full((6,), 99), int32(5, 5, 5, 5)
    package.prepare_pos_seq_lens(int32(1, 0), int32(0, 2, 5, 77), int32(4, 7), pos, seq_lens)
    assert pos.tolist() == [7, 8, 4, 5, 6, 99]
    assert seq_lens.tolist() == [9, 7, 0, 0]


@pytest.mark.spec("Example: tokens [10, 11, 12, 13, 14] of slot 0, prefill_len 5, c = 1, q = 3")
def test_prefill(package):
    input_ids, upcoming = int32(0, 0, 0, 0, 0), torch.full((2, 2), 9, dtype=torch.int32)
    tokens = torch.stack([int32(10, 11, 12, 13, 14), int32(20, 21, 22, 23, 24)])
    starts = int32(0, 3, 4)
    computed = int32(1, 5)
    package.prepare_prefill_inputs(
        input_ids, upcoming, int32(0, 1), starts, tokens, int32(5, 5), computed
    )
    assert input_ids.tolist() == [11, 12, 13, 0, 0]
    assert upcoming.tolist() == [[14, 9], [0, 9]]


def combine(package, *, new=1, s=(9, 2), prefill=(5, 4), n=(3, 1), dtype=torch.int64):
    input_ids = int32(1, 2, 3, 4, 5)
    offsets = int32(0, n[0], sum(n))
    drafts = torch.tensor([[60, 61, 62], [70, 71, 72]], dtype=dtype)
    last = torch.tensor([[50], [51]], dtype=dtype)
    indices = package.combine_sampled_and_draft_tokens(
        input_ids,
        int32(0, 1),
        last,
        int32(0, 3, 5),
        int32(*s),
        int32(*prefill),
        drafts,
        offsets,
        sum(n),
        new,
    )
    assert indices.dtype == torch.int64
    return input_ids.tolist(), indices.tolist()


@pytest.mark.spec("Example: two rows with q = [3, 2], s = [9, 2], prefill_len [5, 4], n = [3, 1]")
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_combined(package, dtype):
    assert combine(package, dtype=dtype) == ([50, 60, 61, 4, 5], [0, 1, 2, 4])


def test_the_last_token_of_a_prompt_is_kept(package):
    assert combine(package, prefill=(7, 2)) == ([1, 60, 61, 4, 5], [0, 1, 2, 4])


def test_without_a_new_token_all_are_drafts(package):
    assert combine(package, new=0) == ([60, 61, 62, 4, 5], [0, 1, 2, 4])


def test_a_row_without_logits_writes_nothing(package):
    assert combine(package, n=(0, 1), s=(9, 9)) == ([1, 2, 3, 4, 51], [4])


@pytest.mark.spec("Example: slots [4, 2] with 1 and 3 logits give [4, 2, 2, 2] and [0, 0, 1, 2]")
def test_expanded(package):
    slots, places = package.expand_idx_mapping(torch.tensor([4, 2]), 4, int32(0, 1, 4), 3)
    assert (slots.tolist(), places.tolist()) == ([4, 2, 2, 2], [0, 0, 1, 2])
    assert (slots.dtype, places.dtype) == (torch.int64, torch.int32)


@pytest.mark.spec("Example: sampled [2, 1, 1], s = [9, 4, 3], prefill_len [5, 4, 4], n = [3, 1, 1]")
def test_counts(package):
    sampled = int32(2, 1, 1)
    offsets, prefill = int32(0, 3, 4, 5), int32(5, 4, 4)
    found, rejected = package.get_num_sampled_and_rejected(
        sampled, int32(9, 4, 3), offsets, int32(0, 1, 2), prefill
    )
    assert found is sampled
    assert (found.tolist(), rejected.tolist()) == ([2, 1, 0], [1, 0, 0])


class State:
    """State of two slots, slot 0 as in the example."""

    def __init__(self):
        self.computed, self.total = int32(4, 4), int32(5, 5)
        self.last = torch.tensor([[1], [2]])
        self.counts = torch.zeros(2, 10, dtype=torch.int32)
        self.tokens = torch.zeros(2, 9, dtype=torch.int32)

    def update(self, package, mapping, starts, *, counts=True):
        package.post_update(
            mapping,
            self.computed,
            self.last,
            self.counts if counts else None,
            torch.tensor([[8, 8, 9]]),
            int32(2),
            int32(1),
            starts,
            self.tokens,
            self.total,
        )


@pytest.mark.spec("Example: total_len 5, c = 4, q = 3, sampled tokens [8, 8, 9], 2 sampled and 1")
def test_update(package):
    state = State()
    state.update(package, int32(0), int32(0, 3))
    assert state.tokens.tolist() == [[0, 0, 0, 0, 0, 8, 8, 0, 0], [0] * 9]
    assert (state.total.tolist(), state.computed.tolist()) == ([7, 5], [6, 4])
    assert state.last.tolist() == [[8], [2]]
    assert state.counts.nonzero().tolist() == [[0, 8]]
    assert state.counts[0, 8] == 2


def test_update_without_offsets_and_counts(package):
    state = State()
    state.update(package, int32(0), None, counts=False)
    assert state.computed.tolist() == [3, 4]
    assert not state.counts.any()


def test_a_dummy_row_updates_nothing(package):
    state = State()
    state.update(package, int32(-1), int32(0, 3))
    assert vars(state).keys() == vars(State()).keys()
    assert all(torch.equal(vars(state)[name], value) for name, value in vars(State()).items())


@pytest.mark.spec("Example: slots [2, -1, 0], q = [3, 4, 1] and [7, 8, 9] computed tokens")
def test_advance(package):
    computed = int32(7, 8, 9)
    package.post_update_num_computed_tokens(int32(2, -1, 0), computed, int32(0, 3, 7, 8))
    assert computed.tolist() == [8, 8, 12]


def test_two_rows_of_one_slot_are_refused(package):
    with pytest.raises(package.MetadataError, match="each slot in one row"):
        package.post_update_num_computed_tokens(int32(1, 1), int32(0, 0), int32(0, 1, 2))


def test_more_logits_than_tokens_are_refused(package):
    with pytest.raises(package.MetadataError, match="cu_num_logits is 3 logits in row 1"):
        combine(package, n=(1, 3))
