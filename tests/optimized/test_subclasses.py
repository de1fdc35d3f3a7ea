"""Tests that slices and virtual batches keep the class and fields of a metadata subclass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from attnproof import optimized
from attnproof.reference import CommonAttentionMetadata, MetadataError, UBatchSlice, aligned

LOCAL = "make_local_attention_virtual_batches"


@dataclass
class Extended(CommonAttentionMetadata):
    row_tensor: torch.Tensor | None = field(default=None, metadata=aligned("request"))
    row_array: np.ndarray | None = field(default=None, metadata=aligned("request"))
    row_list: list[str] | None = field(default=None, metadata=aligned("request"))
    row_tuple: tuple[int, ...] | None = field(default=None, metadata=aligned("request"))
    tokens: torch.Tensor | None = field(default=None, metadata=aligned("token"))
    whole: Any = None
    derived: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.derived = 10 * self.num_reqs


@pytest.fixture
def extended(build):
    def make(query_lens: list[int], seq_lens: list[int], **more: Any) -> Extended:
        rows, tokens = len(query_lens), sum(query_lens)
        values = {
            "row_tensor": torch.arange(3 * rows).reshape(rows, 3),
            "row_array": np.arange(rows, dtype=np.int16),
            "row_list": [f"request {row}" for row in range(rows)],
            "row_tuple": tuple(range(rows)),
            "tokens": torch.arange(tokens + 2),
            "whole": {"layers": 3},
        }
        return Extended(**vars(build(query_lens, seq_lens)), **values | more)

    return make


def slices(*bounds: tuple[int, int, int, int]) -> list[UBatchSlice]:
    return [UBatchSlice(slice(r0, r1), slice(t0, t1)) for r0, r1, t0, t1 in bounds]


def test_slices_of_a_subclass(extended, agree):
    md = extended([3, 2, 4], [5, 2, 5])
    first, second = agree("split_attn_metadata", slices((0, 2, 0, 4), (1, 3, 4, 9)), md)
    assert type(first) is type(second) is Extended
    assert second.row_tensor.tolist() == [[3, 4, 5], [6, 7, 8]]
    assert second.row_array.tolist() == [1, 2]
    assert second.row_list == ["request 1", "request 2"]
    assert second.row_tuple == (1, 2)
    assert second.tokens.tolist() == [4, 5, 6, 7, 8]
    assert second.whole is md.whole
    assert second.derived == 20
    assert second.row_tensor.data_ptr() == md.row_tensor[1:].data_ptr()


def test_virtual_batches_of_a_subclass(extended, agree):
    md = extended([5, 0, 2], [9, 3, 2])
    virtual = agree(LOCAL, 4, md, 2)
    assert type(virtual) is Extended
    assert virtual.row_tensor[:, 0].tolist() == [0, 0, 3, 6]
    assert virtual.row_array.tolist() == list(virtual.row_tuple) == [0, 0, 1, 2]
    assert virtual.row_list == [f"request {row}" for row in (0, 0, 1, 2)]
    assert virtual.tokens is md.tokens
    assert virtual.derived == 40


def test_virtual_batches_of_no_requests(extended, agree):
    virtual = agree(LOCAL, 4, extended([], []), 2)
    assert virtual.row_tensor.shape == (0, 3)
    assert virtual.row_list == []


@pytest.mark.parametrize("name", ["row_tensor", "row_array", "row_list", "row_tuple", "tokens"])
def test_a_field_may_be_none(extended, agree, name):
    md = extended([3, 2], [5, 2], **{name: None})
    assert getattr(agree(LOCAL, 4, md, 2), name) is None
    assert getattr(agree("split_attn_metadata", slices((0, 1, 0, 3)), md)[0], name) is None


@pytest.mark.parametrize(
    "change", [{"row_list": ["one"]}, {"row_tensor": torch.zeros(3)}, {"tokens": torch.zeros(4)}]
)
def test_fields_of_another_batch(extended, agree, change):
    md = extended([3, 2], [5, 2], **change)
    assert isinstance(agree(LOCAL, 4, md, 2), MetadataError)
    assert isinstance(agree("split_attn_metadata", slices((0, 1, 0, 3)), md), MetadataError)


def test_a_plain_batch_stays_plain(build):
    md = build([3, 2], [5, 2])
    (child,) = optimized.split_attn_metadata(slices((0, 1, 0, 3)), md)
    virtual = optimized.make_local_attention_virtual_batches(4, md, 2)
    assert type(child) is type(virtual) is CommonAttentionMetadata
