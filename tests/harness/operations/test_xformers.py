"""Diagnoses and invariants of the XFormers operations, on candidates with one mistake each."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attnproof import reference
from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.cases.layers.xformers_step import (
    HEAD_SIZES,
    shortened_batch,
    with_supported_head_size,
)
from attnproof.harness.operations import ALL
from attnproof.harness.operations.xformers.backend import steps_of
from attnproof.harness.operations.xformers.decode_mask import MASK, mask_name
from attnproof.harness.operations.xformers.metadata_views import Free, split_of
from attnproof.harness.oracles import judge
from attnproof.harness.oracles.trial import Trial

METADATA, BUILDER, IMPL, BACKEND = (
    ALL[f"XFormersAttention{name}"] for name in ("Metadata", "MetadataBuilder", "Impl", "Backend")
)


def failures(operation, name, offered):
    """Return a candidate's diagnoses on a boundary by oracle and field."""
    case = dict(operation.inputs.boundaries())[name]
    own = getattr(reference, operation.name)
    verdict = judge(Trial(operation, case, offered, own, "cpu"))
    return {(failure.oracle, failure.field): failure.diagnosis for failure in verdict.failures}


class LooseBounds(reference.XFormersAttentionMetadata):
    change: dict

    @property
    def decode_metadata(self):
        view = super().decode_metadata
        return self.__dict__.setdefault("_loose", replace(view, **self.change))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"max_seq_len": 1}, "has a max_seq_len below its longest, 7"),
        ({"max_seq_len": 10**6}, "has a max_seq_len above the batch's, 7"),
        ({"max_query_len": True}, "has a max_query_len that is no Python int"),
    ],
)
def test_bounds_of_a_view_are_judged_by_invariants_only(change, text):
    offered = type("Loose", (LooseBounds,), {"change": change})
    found = failures(METADATA, "decodes, then prefills", offered)
    assert found["invariants", "decode_metadata.bounds"] == text
    assert "equality" not in {oracle for oracle, _ in found}


def test_bounds_that_are_not_tight_are_right():
    offered = type("Tight", (LooseBounds,), {"change": {"max_query_len": 1}})
    assert failures(METADATA, "decodes, then prefills", offered) == {}
    assert Free(a=1) == Free(a=2) != 1


def test_a_view_that_is_built_each_time_is_found_without_the_reference():
    class Forgets(reference.XFormersAttentionMetadata):
        @property
        def prefill_metadata(self):
            self._prefills = None
            return super().prefill_metadata

    found = failures(METADATA, "decodes, then prefills", Forgets)
    assert ("invariants", "prefill_metadata is kept") in found


def test_the_split_counts_the_padding_behind_the_last_decode():
    batch = make_batch([1, 0], [3, 0], 4, padded_requests=1, padded_tokens=2)
    assert split_of(batch) == (3, 3)
    assert split_of(make_batch([1, 2], [3, 0], 4, padded_tokens=2)) == (1, 1)
    assert split_of(make_batch([], [], 4, padded_tokens=2)) == (0, 0)


def test_masks_are_known_by_their_class():
    xformers = pytest.importorskip("xformers.ops.fmha.attn_bias")
    real = xformers.PagedBlockDiagonalCausalWithOffsetPaddedKeysMask
    assert mask_name(object.__new__(real)) == MASK
    assert mask_name(object.__new__(type("Mine", (real,), {}))) == MASK
    assert mask_name(object.__new__(type("Other", (), {}))) == "Other"
    assert mask_name(xformers.LowerTriangularMask()) == "LowerTriangularMask"


class Step(reference.XFormersAttentionImpl):
    """The reference's step, followed by `then`."""

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output=None, *scales):
        returned = super().forward(
            layer, query, key, value, kv_cache, attn_metadata, output, *scales
        )
        return self.then(kv_cache, returned)


def then(change):
    def changed(self, kv_cache, output):
        return change(kv_cache, output)

    return type("Then", (Step,), {"then": changed})


def _write_slot_0(kv_cache, output):
    kv_cache[:, 0] = 1
    return output


def _write_padding(_kv_cache, output):
    output[-1] = 1
    return output


def _outweigh(_kv_cache, output):
    output[0] = output[0].abs() + 100
    return output


@pytest.mark.parametrize(
    ("change", "name", "found"),
    [
        (
            _write_slot_0,
            "decodes and prefills",
            {
                ("equality", "kv_cache"): "a slot written that no new token has",
                ("invariants", "kv_cache"): "is written at a slot that no new token has",
            },
        ),
        (
            _write_padding,
            "decodes in a larger graph (E23)",
            {
                ("equality", "rest of output kept"): "output of tokens written that no row has",
                ("invariants", "output"): "is written where no row has a token",
            },
        ),
        (
            _outweigh,
            "decodes and prefills",
            {
                ("equality", "output"): "wrong attention in decodes",
                ("invariants", "output"): "leaves its values' range",
            },
        ),
        (
            lambda _cache, output: output.clone(),
            "only prefills",
            {
                ("equality", "returned"): "returns something else than the output it was given",
                ("invariants", "returned"): "is not the buffer that was given",
            },
        ),
    ],
)
def test_a_wrong_step_is_diagnosed_with_and_without_the_reference(change, name, found):
    diagnoses = failures(IMPL, name, then(change))
    assert {
        key: text for key, text in diagnoses.items() if key[0] in ("equality", "invariants")
    } == found


def test_attention_to_one_key_gives_its_value():
    def half(_cache, output):
        output *= 0.5
        return output

    found = failures(IMPL, "one token", then(half))
    assert found["invariants", "output"] == "is not the one value that it sees"


def test_each_engine_step_continues_where_the_last_one_ended():
    batch = make_batch([3, 1], [0, 15], 4)
    first, second, third = steps_of(batch, {"page": 0, "more": [1, 2]})
    assert first.computed_lens == (0, 15)
    assert second.computed_lens == (3, 16)
    assert third.computed_lens == (4, 17)
    assert [step.query_lens for step in (first, second, third)] == [(3, 1), (1, 1), (2, 1)]
    assert first.blocks == second.blocks == third.blocks
    assert [len(blocks) for blocks in third.blocks] == [1, 2]


def test_an_engines_batch_becomes_short_and_keeps_its_layout():
    lens = ([1, 1, 900], [5000, 7, 3000])
    batch = make_batch(*lens, 16, padded_requests=1, padded_tokens=9, strided=True)
    short = shortened_batch(batch)
    assert short.query_lens[0] == 1
    assert short.query_lens[1] > 1
    assert max(short.computed_lens) <= 35
    assert (short.strided, short.padded_requests, short.padded_tokens) == (True, 1, 3)
    assert shortened_batch(make_batch([], [], 16)).query_lens == ()


@pytest.mark.parametrize("size", [0, 1, 33, 128, 1000])
def test_a_shrunk_head_size_is_one_that_the_backend_supports(size):
    assert with_supported_head_size({"head_size": size})["head_size"] in HEAD_SIZES


def test_a_candidates_mask_must_be_of_xformers():
    pytest.importorskip("xformers")

    class Builder(reference.XFormersAttentionMetadataBuilder):
        def _mask(self, md, rows):
            return torch.zeros(rows)

    found = failures(BUILDER, "only decodes", Builder)
    assert found["equality", "attn_bias"] == "a mask that is Tensor"


def test_a_backend_of_another_name_is_found():
    class Backend(reference.XFormersAttentionBackend):
        @staticmethod
        def get_name():
            return "XFORMERS"

    found = failures(BACKEND, "no requests", Backend)
    assert found["invariants", "name"] == "is 'XFORMERS', not 'XFORMERS_VLLM_V1'"
