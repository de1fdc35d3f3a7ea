"""Tests that `validate` reports the field of each broken invariant of SPEC.md section 1."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnproof import reference


def test_consistent_batch_is_valid(make_metadata):
    metadata = make_metadata([2, 1, 0], [5, 9, 0], [[1, 2, 3]] * 3, num_actual_tokens=4)
    reference.validate(metadata, block_size=4)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("query_start_loc", torch.tensor([0, 1, 3]).int(), "query_start_loc_cpu is"),
        ("seq_lens", torch.tensor([5, 8]).int(), "seq_lens_cpu is"),
        ("num_computed_tokens_cpu", torch.tensor([3, 7]).int(), "num_computed_tokens_cpu[1] is 7"),
        ("max_query_len", 1, "max_query_len is 1, expected at least 2"),
        ("max_seq_len", 8, "max_seq_len is 8, expected at least 9"),
        ("num_actual_tokens", 2, "num_actual_tokens is 2"),
        ("slot_mapping", torch.tensor([4, 4, 5]), "slot_mapping[1] is 4"),
        ("slot_mapping", torch.tensor([4, -2, 5]), "slot_mapping[1] is -2"),
        ("slot_mapping", torch.tensor([4, 3]), "slot_mapping is of length 2"),
        ("logits_indices_padded", torch.tensor([1]), "num_logits_indices is None"),
        (
            "encoder_seq_lens",
            np.array([1]),
            "encoder_seq_lens is of shape (1,), expected shape (2,)",
        ),
        ("dcp_local_seq_lens", torch.tensor([1]), "dcp_local_seq_lens is of shape (1,), expected"),
        ("num_reqs", 3, "query_start_loc is of length 3, expected length 4"),
        ("block_table_tensor", torch.zeros(1, 3).int(), "block_table_tensor is of length 1"),
    ],
)
def test_broken_invariant_is_an_error_with_its_field(make_metadata, field, value, message):
    metadata = make_metadata([2, 1], [5, 9], **{field: value})
    with pytest.raises(reference.MetadataError) as caught:
        reference.validate(metadata)
    assert message in str(caught.value)
    assert str(caught.value).startswith("validate: ")


def test_table_too_narrow_for_a_sequence(make_metadata):
    metadata = make_metadata([1], [9], [[1, 2]])
    with pytest.raises(reference.MetadataError, match="2 columns wide, expected enough for 9"):
        reference.validate(metadata, block_size=4)


@pytest.mark.parametrize("field", ["num_reqs", "num_actual_tokens", "max_seq_len"])
def test_numpy_scalars_are_a_type_error(make_metadata, field):
    metadata = make_metadata([1], [9])
    setattr(metadata, field, np.int64(1))
    with pytest.raises(TypeError, match=field):
        reference.validate(metadata)


def test_error_survives_pickling():
    import pickle

    error = reference.MetadataError("op", "field", 3, "at least 4")
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error) == "op: field is 3, expected at least 4"
    assert (copy.operation, copy.field) == ("op", "field")
