"""Classes of engines that take batches: builders, wrapped backends and the batch itself."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any

from attnproof.harness.interfaces.conversion import Conversion
from attnproof.reference.shared import CommonAttentionMetadata


def v1_builder(cls: type[Any], conversion: Conversion) -> type[Any]:
    """Return an engine's abstract V1 builder with our constant, arguments and batches.

    A subclass's `build` gets our batch again. A config without a parallel part gets one for a
    single GPU.
    """

    class AttentionMetadataBuilder(cls):  # type: ignore[misc]
        """The engine's class for our batches."""

        cudagraph_support = support(cls)

        @abstractmethod
        def __init__(self, kv_cache_spec: Any, layer_names: Any, config: Any, device: Any) -> None:
            super().__init__(kv_cache_spec, layer_names, complete(config), device)

        def __init_subclass__(cls, **kwargs: Any) -> None:
            if "build" in vars(cls):
                cls.build = _with_batches(conversion.ours, cls.build)
            super().__init_subclass__(**kwargs)

        def build_for_cudagraph_capture(self, *args: Any, **kwargs: Any) -> Any:
            """Return the result of the engine's class for the engine's batch."""
            return _converted(conversion, super().build_for_cudagraph_capture, args, kwargs)

        def build_for_drafting(self, *args: Any, **kwargs: Any) -> Any:
            """Return the result of the engine's class for the engine's batch."""
            return _converted(conversion, super().build_for_drafting, args, kwargs)

        def use_cascade_attention(self, *args: Any, **kwargs: Any) -> bool:
            """Return the answer of the engine's class; no cascade where it has no answer."""
            answer = getattr(super(), "use_cascade_attention", None)
            return answer is not None and use_cascade(answer, args, kwargs)

    return AttentionMetadataBuilder


def own_builder(cls: type[Any], conversion: Conversion) -> type[Any]:
    """Return a candidate's builder that takes our batches; its metadata is its own."""

    class Builder(cls):  # type: ignore[misc]
        def bind_build(self, *args: Any) -> Any:
            """Convert the arguments; return the candidate's own method with them, to be timed."""
            return partial(super().build, *map(conversion.theirs, args))

    def converted(method: Callable[..., Any]) -> Any:
        return lambda *args, **kwargs: _converted(conversion, method, args, kwargs)

    for name in ("build", "build_for_cudagraph_capture"):
        if hasattr(cls, name):
            setattr(Builder, name, converted(getattr(cls, name)))
    Builder.__name__, Builder.__module__ = cls.__name__, cls.__module__
    return Builder


def _with_batches(convert: Callable[[Any], Any], function: Callable[..., Any]) -> Any:
    """Return the function with its arguments converted."""

    @wraps(function)
    def converted(*args: Any, **kwargs: Any) -> Any:
        return function(
            *map(convert, args), **{name: convert(value) for name, value in kwargs.items()}
        )

    return converted


def _converted(
    conversion: Conversion,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call the engine's function with the engine's batches; keep what it assigns in them."""
    theirs = [conversion.theirs(value) for value in args]
    named = {name: conversion.theirs(value) for name, value in kwargs.items()}
    result = function(*theirs, **named)
    for value in (*theirs, *named.values()):
        conversion.write_back(value)
    return result


def support(cls: type[Any]) -> Any:
    """Return the CUDA graph support of an engine's builder."""
    return getattr(cls, "cudagraph_support", None) or cls._cudagraph_support


def complete(config: Any) -> Any:
    """Add the fields that later versions read to the stand-in of a config; return it."""
    if not hasattr(config, "parallel_config"):
        config.parallel_config = SimpleNamespace(decode_context_parallel_size=1)
    if config.speculative_config is not None:
        config.speculative_config.parallel_drafting = False
    return config


def with_computed(metadata: Any, batch: Any) -> Any:
    """Give a reduced batch the computed tokens of the given one; return it.

    An engine without that field says nothing of it (SPEC.md section 6, E42).
    """
    if metadata is not batch and isinstance(metadata, CommonAttentionMetadata):
        metadata.num_computed_tokens_cpu = batch.num_computed_tokens_cpu
    return metadata


def fast_prefill_backend(
    function: Callable[..., Any],
    conversion: Conversion,
    finish: Callable[[Any, Any], Any] = lambda metadata, _: metadata,
) -> Callable[..., Any]:
    """Adapt `create_fast_prefill_custom_backend`: its builder takes our batches.

    `finish` returns the reduced batch that the underlying builder gets, from it and the given.
    """

    def create_fast_prefill_custom_backend(prefix: Any, underlying_attn_backend: Any) -> Any:
        latest: list[Any] = [None]

        def back(metadata: Any) -> Any:
            return finish(conversion.ours(metadata, latest[0]), latest[0])

        underlying = _with_our_batches(underlying_attn_backend, back)
        backend = function(prefix, underlying)
        builder = backend.get_builder_cls()
        build = builder.build

        def converted(
            self: Any, common_prefix_len: Any, common_attn_metadata: Any, *args: Any, **kwargs: Any
        ) -> Any:
            latest[:] = [common_attn_metadata]
            metadata = conversion.theirs(common_attn_metadata)
            built = build(self, common_prefix_len, metadata, *args, **kwargs)
            conversion.write_back(metadata)
            return built

        builder.build = converted
        return backend

    return create_fast_prefill_custom_backend


def _with_our_batches(backend: Any, back: Callable[[Any], Any]) -> Any:
    """Return the backend with a builder for which `back` converts the engine's batch to ours.

    Anything that
    is no backend is returned as it is, for the engine to refuse.
    """
    if not hasattr(backend, "get_builder_cls"):
        return backend
    underlying = backend.get_builder_cls()

    class Builder(underlying):  # type: ignore[misc, valid-type]
        def build(
            self, common_prefix_len: Any, common_attn_metadata: Any, *args: Any, **kwargs: Any
        ) -> Any:
            metadata = back(common_attn_metadata)
            return super().build(common_prefix_len, metadata, *args, **kwargs)

    return type(backend.__name__, (backend,), {"get_builder_cls": staticmethod(lambda: Builder)})


def use_cascade(
    use_cascade_attention: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Call the function with 1 for the numbers of ranks that only later versions take."""
    signature = inspect.signature(use_cascade_attention)
    bound = signature.bind_partial(*args, **kwargs).arguments
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = signature.parameters.items()
    lacking = {name: 1 for name, p in parameters if p.kind in named and name not in bound}
    return bool(use_cascade_attention(*args, **kwargs, **lacking))


def batch_class(cls: type[Any], _conversion: Conversion) -> type[Any]:
    """Return a batch of ours that removes padding as the engine's class does.

    A class without `unpadded` is returned as it is.
    """
    if not hasattr(cls, "unpadded"):
        return cls
    own = Conversion(lambda: cls)
    lacking = {"seq_lens_cpu", "num_computed_tokens_cpu"} - {f.name for f in fields(cls)}

    @dataclass
    class Batch(CommonAttentionMetadata):
        """Our fields, and the engine's `unpadded`."""

        def unpadded(self, num_actual_tokens: int, num_actual_reqs: int) -> Any:
            """Return the engine's batch without its last rows and tokens, converted back."""
            theirs = own.theirs(self)
            cut = theirs.unpadded(num_actual_tokens, num_actual_reqs)
            own.write_back(theirs)
            ours = own.ours(cut, self)
            for name in lacking:  # not the engine's: cut as its other fields of requests
                setattr(ours, name, getattr(self, name)[:num_actual_reqs])
            return ours

    Batch.__name__ = Batch.__qualname__ = CommonAttentionMetadata.__name__
    return Batch
