"""Conversion of batches to vLLM's and back: common fields are the same objects."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import pytest
import torch

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.cases.batches.tensors import lay_out
from attnproof.reference.interface import UBatchSlice
from attnproof.reference.shared import CommonAttentionMetadata

ALL = ("0.10.2", "0.11.2", "0.32.0")
LATER = {"seq_lens_cpu_upper_bound": "seq_lens_cpu", "encoder_seq_lens_cpu": "encoder_seq_lens"}
DERIVED = ("encoder_seq_lens", "max_logits_per_req")


@pytest.fixture
def metadata(beside, part):
    """The module that converts, with a stand-in for a release."""

    def convert(release):
        beside(release)
        return part("metadata")

    return convert


@pytest.mark.parametrize("release", ALL)
def test_common_fields_are_the_same_objects(metadata, batch, release):
    converted = metadata(release).theirs(batch)
    assert type(converted).__module__.startswith("vllm.v1.attention.backend")
    ours = {f.name for f in fields(batch)}
    shared = {f.name for f in fields(converted)} & ours
    if release == "0.32.0":
        shared.remove("encoder_seq_lens")  # a tensor on the device there
    assert {"query_start_loc", "seq_lens", "block_table_tensor", "slot_mapping"} < shared
    for name in shared:
        assert getattr(converted, name) is getattr(batch, name), name
    assert converted.unknown_to_us == "left alone"


def test_fields_that_a_version_lacks_are_left_out(metadata, batch):
    converted = metadata("0.10.2").theirs(batch)
    assert batch.logits_indices_padded is not None
    assert not hasattr(converted, "logits_indices_padded")
    assert not hasattr(converted, "encoder_seq_lens")


def test_fields_of_a_later_version_are_filled_from_ours(metadata, batch):
    converted = metadata("0.32.0").theirs(batch)
    for theirs, ours in LATER.items():
        assert getattr(converted, theirs) is getattr(batch, ours)
    assert converted.encoder_seq_lens.tolist() == [5, 6, 7]
    assert isinstance(converted.encoder_seq_lens, torch.Tensor)
    assert converted.max_logits_per_req == 2, "tokens 3 and 4 of the second request"


def test_absent_optional_fields_are_none_on_both_sides(metadata):
    plain, _arena = lay_out(make_batch([1, 1], [6, 3], 4))
    converted = metadata("0.32.0").theirs(plain)
    assert converted.encoder_seq_lens is converted.encoder_seq_lens_cpu is None
    assert converted.logits_indices_padded is converted.max_logits_per_req is None


@pytest.mark.parametrize("release", ALL)
def test_converted_batch_converts_back_to_the_same_object(metadata, batch, release):
    module = metadata(release)
    assert module.ours(module.theirs(batch)) is batch


@dataclass
class WithPositions(CommonAttentionMetadata):
    positions: torch.Tensor | None = None
    labels: list[str] | None = None


@pytest.mark.parametrize("release", ALL)
def test_fields_of_a_subclass_are_kept(metadata, batch, release):
    positions = torch.arange(7)
    mine = WithPositions(**vars(batch), positions=positions, labels=["a"])
    module = metadata(release)
    converted = module.theirs(mine)
    assert isinstance(converted, module.CONVERSION.metadata_class)
    assert converted.positions is positions
    assert converted.labels is mine.labels
    assert converted.query_start_loc is batch.query_start_loc


@dataclass
class WithDerived(WithPositions):
    rows_and_tokens: int = field(init=False)

    def __post_init__(self):
        self.rows_and_tokens = self.num_reqs + self.num_actual_tokens


@pytest.mark.parametrize("release", ALL)
def test_a_copy_of_a_subclass_derives_its_field_anew(metadata, batch, release):
    mine = WithDerived(**vars(batch), positions=torch.arange(7))
    module = metadata(release)
    copied = replace(module.theirs(mine), num_actual_tokens=2)
    assert module.ours(copied, mine).rows_and_tokens == batch.num_reqs + 2


@pytest.mark.parametrize(
    ("release", "name"), [("0.10.2", "UbatchSlice"), ("0.11.2", "UBatchSlice")]
)
def test_micro_batches_by_either_name(metadata, release, name):
    module = metadata(release)
    mine = [UBatchSlice(slice(0, 2), slice(0, 5)), UBatchSlice(slice(1, 3), slice(5, 7))]
    converted = module.theirs(mine)
    assert [type(one).__name__ for one in converted] == [name, name]
    assert converted[1].request_slice == slice(1, 3)
    assert module.theirs(mine[0]).token_slice == slice(0, 5)


@pytest.mark.parametrize("value", [7, "text", None, (3,), torch.arange(2)])
def test_other_values_are_unchanged(metadata, value):
    module = metadata("0.11.2")
    assert module.theirs(value) is value
    assert module.ours(value) is value


@pytest.mark.parametrize("release", ["0.10.2", "0.32.0"])
def test_results_are_read_back_with_the_same_tensors(beside, batch, release):
    made = beside(release).make_local_attention_virtual_batches(8, batch, 4)
    assert type(made) is CommonAttentionMetadata
    assert (made.max_seq_len, made.max_query_len) == (8, 4)
    assert made.query_start_loc is batch.query_start_loc
    assert made.seq_lens_cpu is batch.seq_lens_cpu
    assert made.num_computed_tokens_cpu.tolist() == batch.num_computed_tokens_cpu.tolist()


def test_derived_lengths_have_the_dtype_of_the_batch(beside):
    wide, _arena = lay_out(make_batch([1, 4], [6, 0], 4, dtype="int64"))
    made = beside("0.32.0").make_local_attention_virtual_batches(8, wide, 4)
    assert made.num_computed_tokens_cpu.dtype == torch.int64


def test_results_in_lists_are_read_back(beside, batch):
    slices = [UBatchSlice(slice(0, 1), slice(0, 1)), UBatchSlice(slice(1, 3), slice(1, 7))]
    children = beside("0.10.2").split_attn_metadata(slices, batch)
    assert [type(child) for child in children] == [CommonAttentionMetadata] * 2
    assert [child.num_reqs for child in children] == [1, 2]
