"""Tests of the shared types (SPEC.md section 1 and appendix A)."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from attnproof import reference


def test_metadata_fields_have_the_published_order():
    names = [field.name for field in dataclasses.fields(reference.CommonAttentionMetadata)]
    assert names == [
        "query_start_loc",
        "query_start_loc_cpu",
        "seq_lens",
        "seq_lens_cpu",
        "num_computed_tokens_cpu",
        "num_reqs",
        "num_actual_tokens",
        "max_query_len",
        "max_seq_len",
        "block_table_tensor",
        "slot_mapping",
        "causal",
        "logits_indices_padded",
        "num_logits_indices",
        "encoder_seq_lens",
        "dcp_local_seq_lens",
    ]


def test_ubatch_slice_is_empty():
    full = reference.UBatchSlice(slice(0, 2), slice(3, 8))
    assert not full.is_empty()
    assert full.num_tokens == 5
    assert reference.UBatchSlice(slice(1, 1), slice(3, 8)).is_empty()
    assert reference.UBatchSlice(slice(0, 1), slice(8, 8)).is_empty()


def test_graph_support_levels_have_the_published_values():
    levels = {level.name: level.value for level in reference.AttentionCGSupport}
    assert levels == {
        "ALWAYS": 3,
        "UNIFORM_BATCH": 2,
        "UNIFORM_SINGLE_TOKEN_DECODE": 1,
        "NEVER": 0,
    }


def test_layer_parameters_are_compared_without_the_derived_flags():
    one = reference.PerLayerParameters(-1, None, 0.5, has_same_all_params=True)
    other = reference.PerLayerParameters(-1, None, 0.5, has_same_all_params=False)
    assert one == other
    assert one != reference.PerLayerParameters(4, None, 0.5)


@pytest.mark.parametrize(
    ("cls", "method", "parameters"),
    [
        (reference.AttentionBackend, "swap_blocks", ["src_kv_cache", "dst_kv_cache", "src_to_dst"]),
        (reference.AttentionBackend, "copy_blocks", ["kv_caches", "src_to_dists"]),
        (
            reference.AttentionMetadataBuilder,
            "build",
            ["self", "common_prefix_len", "common_attn_metadata", "fast_build"],
        ),
        (
            reference.AttentionMetadataBuilderV0,
            "build",
            ["self", "seq_lens", "query_lens", "cuda_graph_pad_size", "batch_size"],
        ),
        (
            reference.AttentionState,
            "get_graph_input_buffers",
            ["self", "attn_metadata", "is_encoder_decoder_model"],
        ),
        (
            reference.MLAAttentionImpl,
            "forward",
            [
                "self",
                "layer",
                "hidden_states_or_cq",
                "kv_c_normed",
                "k_pe",
                "kv_cache",
                "attn_metadata",
                "output",
                "output_scale",
                "output_block_scale",
            ],
        ),
    ],
)
def test_published_signatures(cls, method, parameters):
    assert list(inspect.signature(getattr(cls, method)).parameters) == parameters


class _Builder(reference.AttentionMetadataBuilder[str]):
    def __init__(self, vllm_config):
        self.vllm_config = vllm_config

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        return f"{common_prefix_len} {common_attn_metadata} {fast_build}"


def test_builder_builds_for_capture_and_drafting():
    builder = _Builder(None)
    assert builder.build_for_cudagraph_capture("metadata") == "0 metadata False"
    assert builder.build_for_drafting("metadata", 2) == "0 metadata True"
    assert builder.cudagraph_support is reference.AttentionCGSupport.NEVER


@pytest.mark.parametrize(
    ("tokens", "as_decode", "threshold"), [(3, True, 4), (3, False, 1), (None, True, 1)]
)
def test_builder_threshold_follows_speculation(tokens, as_decode, threshold):
    from types import SimpleNamespace

    speculative = None if tokens is None else SimpleNamespace(num_speculative_tokens=tokens)
    builder = _Builder(SimpleNamespace(speculative_config=speculative))
    builder._init_reorder_batch_threshold(1, as_decode)
    assert builder.reorder_batch_threshold == threshold


def test_backend_without_its_methods_cannot_be_made():
    class Half(reference.AttentionBackend):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Half()
    assert Half.full_cls_name()[1].endswith("Half")
    with pytest.raises(NotImplementedError):
        Half.get_kv_cache_stride_order()
