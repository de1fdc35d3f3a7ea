"""Mistakes in the metadata of KV-sharing fast prefill (SPEC.md section 6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from attnproof.harness.strength.mutation import mutation
from attnproof.reference.interface import (
    KV_SHARING_FAST_PREFILL_METADATA_FIELDS,
    KVSharingFastPrefillMetadata,
)

_BACKEND = "create_fast_prefill_custom_backend"
_LOGITS = tuple(name for name, *_ in KV_SHARING_FAST_PREFILL_METADATA_FIELDS)


@mutation(
    "make_kv_sharing_fast_prefill_common_attn_metadata",
    "K21",
    source="vllm-project/vllm#51738",
    diagnoses=("reads a copy to the host before it has arrived",),
    one=("determinism",),
    both=(),
)
def unwaited_copy(make: Any, common_attn_metadata: Any) -> Any:
    """Offsets are copied to the host without a wait and read at once."""
    reduced = make(common_attn_metadata)
    if reduced is common_attn_metadata:
        return reduced
    # Right on the CPU, and on a GPU as long as something else waits.
    starts = reduced.query_start_loc.to("cpu", non_blocking=True)
    return replace(
        reduced,
        query_start_loc_cpu=starts.to(reduced.query_start_loc_cpu.dtype),
        num_actual_tokens=int(starts[-1]),
        max_query_len=max(starts.diff().tolist(), default=0),
    )


@mutation(
    _BACKEND,
    diagnoses=("field that should not be set", "is not that of the batch"),
    both=("invariants", "purity"),
    tokens=28,
    examined="",
    boundary="a dummy run between two steps",
)
def logits_of_an_earlier_step(create: Any, prefix: str, backend: Any) -> Any:
    """A step without logits indices gets those of the step before it."""
    wrapper = create(prefix, backend)

    class Builder(wrapper.get_builder_cls()):  # type: ignore[misc]
        def build(self, *args: Any, **kwargs: Any) -> Any:
            metadata = super().build(*args, **kwargs)
            logits = {name: getattr(metadata, name) for name in _LOGITS}
            kept = self.__dict__.setdefault("kept", {})
            kept |= {name: value for name, value in logits.items() if value is not None}
            for name, value in kept.items():
                object.__setattr__(metadata, name, value)
            return metadata

    members = {"get_builder_cls": staticmethod(lambda: Builder)}
    return type(wrapper.__name__, (wrapper,), members)


def _building(
    create: Any, prefix: str, backend: Any, change: Callable[[Any, Any, Any], Any]
) -> Any:
    """Return the made backend, whose builder passes its metadata through `change`.

    `change` has the builder, the batch and the metadata. The builder holds the batch and the
    metadata of the underlying builder as `reduced` and `built`.
    """
    create(prefix, backend)  # malformed input raises here

    class Underlying(backend.get_builder_cls()):  # type: ignore[misc]
        def build(self, prefix_len: int, batch: Any, fast_build: bool = False) -> Any:
            self.reduced = batch
            self.built = super().build(prefix_len, batch, fast_build)
            return self.built

    members = {"get_builder_cls": staticmethod(lambda: Underlying)}
    wrapper = create(prefix, type(backend.__name__, (backend,), members))

    class Builder(wrapper.get_builder_cls()):  # type: ignore[misc]
        def build(
            self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
        ) -> Any:
            metadata = super().build(common_prefix_len, common_attn_metadata, fast_build)
            return change(self, common_attn_metadata, metadata)

    return type(wrapper.__name__, (wrapper,), {"get_builder_cls": staticmethod(lambda: Builder)})


@mutation(_BACKEND, diagnoses=("field that should not be set",), both=("invariants",))
def metadata_with_own_logits_returned_as_it_is(create: Any, prefix: str, backend: Any) -> Any:
    """Metadata whose class has the logits fields itself is not given those of the batch."""

    def as_it_is(builder: Any, _batch: Any, metadata: Any) -> Any:
        has_logits = isinstance(builder.built, KVSharingFastPrefillMetadata)
        return builder.built if has_logits else metadata

    return _building(create, prefix, backend, as_it_is)


@mutation(_BACKEND, diagnoses=("off by one token",), both=("consumer", "invariants"))
def offsets_in_two_buffers_in_turn(create: Any, prefix: str, backend: Any) -> Any:
    """A builder has two buffers for reduced offsets: its third step overwrites the first one's."""

    def overwritten(builder: Any, batch: Any, metadata: Any) -> Any:
        if builder.reduced is batch:
            return metadata
        earlier = builder.__dict__.setdefault("earlier", [])
        earlier.append((builder.reduced.query_start_loc, builder.reduced.query_start_loc_cpu))
        if len(earlier) > 2:
            for old, new in zip(earlier.pop(0), earlier[-1], strict=True):
                old[: len(new)] = new[: len(old)]
        return metadata

    return _building(create, prefix, backend, overwritten)


@mutation(_BACKEND, diagnoses=("underlying logits is wrong",), both=())
def attributes_shared_with_the_underlying_metadata(create: Any, prefix: str, backend: Any) -> Any:
    """The metadata has the dictionary of the underlying one, which gets the logits fields too."""

    def shared(builder: Any, _batch: Any, metadata: Any) -> Any:
        attributes = getattr(builder.built, "__dict__", None)
        if attributes is not None:
            attributes.update(vars(metadata))
            object.__setattr__(metadata, "__dict__", attributes)
        return metadata

    return _building(create, prefix, backend, shared)
