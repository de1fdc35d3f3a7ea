"""vLLM's classes under our names: builders that take our batches, and wrapped backends."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from attnproof.harness.adapters.vllm.functions import reorder
from attnproof.harness.adapters.vllm.metadata import ours, theirs


def v1_builder(cls: type[Any]) -> type[Any]:
    """Return the abstract V1 builder with our constant and arguments."""

    class AttentionMetadataBuilder(cls):  # type: ignore[misc]
        """vLLM's class; a config without a parallel part gets one for a single GPU."""

        cudagraph_support = _support(cls)

        @abstractmethod
        def __init__(self, kv_cache_spec: Any, layer_names: Any, config: Any, device: Any) -> None:
            super().__init__(kv_cache_spec, layer_names, _complete(config), device)

        def use_cascade_attention(self, *args: Any, **kwargs: Any) -> bool:
            """Return the result of vLLM's class."""
            return _use_cascade(super().use_cascade_attention, args, kwargs)

    return AttentionMetadataBuilder


def _support(cls: type[Any]) -> Any:
    return getattr(cls, "cudagraph_support", None) or cls._cudagraph_support


def _complete(config: Any) -> Any:
    """Add the fields that later versions read to the stand-in of a config; return it."""
    if not hasattr(config, "parallel_config"):
        config.parallel_config = SimpleNamespace(decode_context_parallel_size=1)
    if config.speculative_config is not None:
        config.speculative_config.parallel_drafting = False
    return config


def xformers_builder(cls: type[Any], reorder_function: Callable[..., Any]) -> type[Any]:
    """Return the XFormers builder; without `reorder_batch` it gets that of the model runner."""

    class XFormersAttentionMetadataBuilder(cls):  # type: ignore[misc]
        """vLLM's class, which takes our batches."""

        cudagraph_support = _support(cls)

        def __init__(self, kv_cache_spec: Any, layer_names: Any, config: Any, device: Any) -> None:
            super().__init__(kv_cache_spec, layer_names, _complete(config), device)

        def build(
            self, common_prefix_len: Any, common_attn_metadata: Any, *args: Any, **kwargs: Any
        ) -> Any:
            """Return vLLM's metadata for our batch."""
            metadata = theirs(common_attn_metadata)
            return super().build(common_prefix_len, metadata, *args, **kwargs)

        def use_cascade_attention(self, *args: Any, **kwargs: Any) -> bool:
            """Return the result of vLLM's class."""
            return _use_cascade(super().use_cascade_attention, args, kwargs)

        if not hasattr(cls, "reorder_batch"):

            def reorder_batch(self, input_batch: Any, scheduler_output: Any) -> bool:
                """Reorder as the model runner does for a builder with this threshold."""
                threshold = self.reorder_batch_threshold
                return bool(reorder(reorder_function)(input_batch, scheduler_output, threshold))

    return XFormersAttentionMetadataBuilder


def fast_prefill_backend(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adapt `create_fast_prefill_custom_backend`: its builder takes our batches."""

    def create_fast_prefill_custom_backend(prefix: Any, underlying_attn_backend: Any) -> Any:
        given: list[Any] = [None]
        made = function(prefix, _with_our_batches(underlying_attn_backend, given))
        builder = made.get_builder_cls()
        build = builder.build

        def converted(
            self: Any, common_prefix_len: Any, common_attn_metadata: Any, *args: Any, **kwargs: Any
        ) -> Any:
            given[:] = [common_attn_metadata]
            return build(self, common_prefix_len, theirs(common_attn_metadata), *args, **kwargs)

        builder.build = converted
        return made

    return create_fast_prefill_custom_backend


def _with_our_batches(backend: Any, given: list[Any]) -> Any:
    """Return the backend with a builder that converts vLLM's batch back to ours.

    `given` holds the latest of our batches that vLLM's builder received.
    """
    underlying = backend.get_builder_cls()

    class Builder(underlying):  # type: ignore[misc, valid-type]
        def build(
            self, common_prefix_len: Any, common_attn_metadata: Any, *args: Any, **kwargs: Any
        ) -> Any:
            metadata = ours(common_attn_metadata, given[0])
            return super().build(common_prefix_len, metadata, *args, **kwargs)

    return type(backend.__name__, (backend,), {"get_builder_cls": staticmethod(lambda: Builder)})


def _use_cascade(
    use_cascade_attention: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Call the function with 1 for the numbers of ranks that only later versions take."""
    signature = inspect.signature(use_cascade_attention)
    given = signature.bind_partial(*args, **kwargs).arguments
    lacking = {name: 1 for name in signature.parameters if name not in given}
    return bool(use_cascade_attention(*args, **kwargs, **lacking))
