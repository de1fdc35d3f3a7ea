"""Tests of split_decodes_and_prefills and reorder_batch_to_split_decodes_and_prefills."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from attnproof import optimized
from attnproof.reference import MetadataError


@pytest.mark.parametrize(
    ("threshold", "uniform", "expected"),
    [
        (1, False, (2, 3, 2, 8)),
        (2, False, (3, 2, 4, 6)),
        (2, True, (2, 3, 2, 8)),
        (5, False, (5, 0, 10, 0)),
        (5, True, (2, 3, 2, 8)),
    ],
)
def test_worked_example(build, agree, threshold, uniform, expected):
    md = build([1, 1, 2, 5, 1], [9, 9, 9, 9, 9])
    assert agree("split_decodes_and_prefills", md, threshold, uniform) == expected


def test_trailing_padded_rows_keep_a_batch_uniform(build, agree):
    md = build([2, 2, 2, 0], [5, 5, 5, 0], num_actual_tokens=8, slot_mapping=torch.arange(8))
    assert agree("split_decodes_and_prefills", md, 2, True) == (4, 0, 8, 0)


def test_no_requests(build, agree):
    assert agree("split_decodes_and_prefills", build([], [])) == (0, 0, 0, 0)


def test_counts_are_python_ints(build):
    counts = optimized.split_decodes_and_prefills(build([1, 3], [4, 4]))
    assert [type(count) for count in counts] == [int] * 4


@pytest.mark.parametrize("threshold", [0, -1, True, 1.0, None])
def test_bad_threshold(build, agree, threshold):
    assert isinstance(
        agree("split_decodes_and_prefills", build([1], [1]), threshold), (MetadataError, TypeError)
    )


@pytest.mark.parametrize("offsets", [[1, 2, 3], [0, 3, 2], [0, -1, 4]])
def test_malformed_offsets(build, agree, offsets):
    md = build([1, 1], [4, 4])
    md.query_start_loc_cpu = torch.tensor(offsets, dtype=torch.int32)
    error = agree("split_decodes_and_prefills", md)
    assert isinstance(error, MetadataError)
    assert error.field == "query_start_loc_cpu"


def test_metadata_of_another_type(agree):
    assert isinstance(agree("split_decodes_and_prefills", "a batch"), TypeError)


class _Batch:
    def __init__(self, count: int) -> None:
        self.req_ids = [f"request {r}" for r in range(count)]
        self.swaps: list[tuple[int, int]] = []

    def swap_states(self, i: int, j: int) -> None:
        self.req_ids[i], self.req_ids[j] = self.req_ids[j], self.req_ids[i]
        self.swaps.append((i, j))


def test_reorder_without_a_schedule_moves_nothing():
    batch = _Batch(2)
    output = SimpleNamespace(num_scheduled_tokens={"request 0": 5})
    with pytest.raises(MetadataError, match=r"num_scheduled_tokens is missing.*'request 1'"):
        optimized.reorder_batch_to_split_decodes_and_prefills(batch, output)
    assert batch.swaps == []
