"""vLLM's classes under our names: builders that take our batches, and wrapped backends."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from attnproof.reference.shared import CommonAttentionMetadata


@pytest.fixture
def adapter(beside):
    return beside("0.11.2")


def test_later_builders_get_one_rank(adapter):
    class Builder(adapter.AttentionMetadataBuilder):
        def __init__(self, *args):
            super().__init__(*args)

    builder = Builder(None, [], SimpleNamespace(speculative_config=None), "cpu")
    assert builder.ranks == 1
    assert builder.use_cascade_attention(2, [1]) is True
    assert builder.use_cascade_attention(1, [1]) is False


def test_wrapped_builder_gets_our_batch_and_vllms_wrapper_its_own(adapter, batch):
    class Builder:
        def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
            return common_prefix_len, common_attn_metadata, fast_build

    class Backend:
        @staticmethod
        def get_builder_cls():
            return Builder

    made = adapter.create_fast_prefill_custom_backend("Fast", Backend)
    assert made.__name__ == "FastBackend"
    prefix, seen, fast = made.get_builder_cls()().build(7, batch, fast_build=True)
    assert (prefix, fast) == (7, True)
    assert type(seen) is CommonAttentionMetadata
    assert seen.query_start_loc is batch.query_start_loc
    assert Backend.get_builder_cls() is Builder, "the underlying backend stays as it is"


def test_layers_are_of_the_class_that_vllm_looks_for(adapter):
    impl = object()
    context = {"attention": SimpleNamespace(impl=impl), "mixer": SimpleNamespace()}
    config = SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context=context))
    assert adapter.get_per_layer_parameters(config, ["attention"], object) == {"attention": impl}
    assert adapter.get_per_layer_parameters(config, ["mixer"], object) == {}
    assert type(context["attention"]) is SimpleNamespace, "the caller's config stays as it is"
