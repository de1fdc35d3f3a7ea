"""Mistakes in the metadata of KV-sharing fast prefill (SPEC.md section 6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import make_dataclass, replace
from typing import Any

from attnproof.harness.strength.mutation import mutation
from attnproof.reference.interface import (
    KV_SHARING_FAST_PREFILL_METADATA_FIELDS,
    KVSharingFastPrefillMetadata,
)

_BACKEND = "create_fast_prefill_custom_backend"
_LOGITS = tuple(name for name, *_ in KV_SHARING_FAST_PREFILL_METADATA_FIELDS)
_SUBCLASS, _METADATA = "subclass_attention_backend", "subclass_attention_metadata"
_FAST_PREFILL = "make_kv_sharing_fast_prefill_common_attn_metadata"


@mutation(
    _FAST_PREFILL,
    "K20",
    source="vllm-project/vllm#28537",
    diagnoses=("raises AssertionError on good input",),
    one=("errors",),
)
def dummy_run(make: Any, common_attn_metadata: Any) -> Any:
    """An assertion demands logits indices of a batch with prefills; a dummy run has none."""
    made = make(common_attn_metadata)
    if common_attn_metadata.max_query_len != 1:
        assert common_attn_metadata.logits_indices_padded is not None
    return made


@mutation(
    _FAST_PREFILL,
    "K21",
    source="vllm-project/vllm#51738",
    diagnoses=("reads a copy to the host before it has arrived",),
    one=("determinism",),
    both=(),
)
def unwaited_copy(make: Any, common_attn_metadata: Any) -> Any:
    """Offsets are copied to the host without a wait and read at once."""
    made = make(common_attn_metadata)
    if made is common_attn_metadata:
        return made
    # Right on the CPU, and on a GPU as long as something else waits.
    starts = made.query_start_loc.to("cpu", non_blocking=True)
    return replace(
        made,
        query_start_loc_cpu=starts.to(made.query_start_loc_cpu.dtype),
        num_actual_tokens=int(starts[-1]),
        max_query_len=max(starts.diff().tolist(), default=0),
    )


@mutation(
    _FAST_PREFILL,
    diagnoses=(
        "loses keys",
        "sees too few keys",
    ),
    both=("consumer", "invariants"),
    examined="both",
)
def keys_reduced_with_the_queries(make: Any, common_attn_metadata: Any) -> Any:
    """Sequence lengths lose the queries that fast prefill leaves out."""
    made = make(common_attn_metadata)
    if made is common_attn_metadata:
        return made
    lens = made.num_computed_tokens_cpu + made.query_start_loc_cpu.diff()
    return replace(made, seq_lens=lens.to(made.seq_lens), seq_lens_cpu=lens.to(made.seq_lens_cpu))


@mutation(
    _FAST_PREFILL,
    diagnoses=("is not that of the given batch", "a copy of the batch"),
    one=("invariants",),
    both=("invariants", "purity"),
)
def copy_of_a_batch_that_is_not_reduced_made_causal(make: Any, common_attn_metadata: Any) -> Any:
    """A batch without logits indices, which is kept, becomes a causal one."""
    made = make(common_attn_metadata)
    return replace(made, causal=True) if made is common_attn_metadata else made


@mutation(
    _BACKEND,
    diagnoses=("field that should not be set", "is not that of the batch"),
    both=("invariants", "purity"),
    tokens=28,
    examined=None,
    boundary="a dummy run between two steps",
)
def logits_of_an_earlier_step(create: Any, prefix: str, backend: Any) -> Any:
    """A step without logits indices gets those of the step before it."""
    made = create(prefix, backend)

    class Builder(made.get_builder_cls()):  # type: ignore[misc]
        def build(self, *args: Any, **kwargs: Any) -> Any:
            metadata = super().build(*args, **kwargs)
            given = {name: getattr(metadata, name) for name in _LOGITS}
            kept = self.__dict__.setdefault("kept", {})
            kept |= {name: value for name, value in given.items() if value is not None}
            for name, value in kept.items():
                object.__setattr__(metadata, name, value)
            return metadata

    members = {"get_builder_cls": staticmethod(lambda: Builder)}
    return type(made.__name__, (made,), members)


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
    made = create(prefix, type(backend.__name__, (backend,), members))

    class Builder(made.get_builder_cls()):  # type: ignore[misc]
        def build(
            self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
        ) -> Any:
            metadata = super().build(common_prefix_len, common_attn_metadata, fast_build)
            return change(self, common_attn_metadata, metadata)

    return type(made.__name__, (made,), {"get_builder_cls": staticmethod(lambda: Builder)})


@mutation(_BACKEND, diagnoses=("field that should not be set",), both=("invariants",))
def metadata_with_own_logits_returned_as_it_is(create: Any, prefix: str, backend: Any) -> Any:
    """Metadata whose class has the logits fields itself is not given those of the batch."""

    def as_it_is(builder: Any, _batch: Any, metadata: Any) -> Any:
        given = isinstance(builder.built, KVSharingFastPrefillMetadata)
        return builder.built if given else metadata

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


@mutation(
    _METADATA,
    diagnoses=(
        "raises TypeError on good input",
        "compared unlike the class that is extended",
        "hashed unlike the class that is extended",
    ),
    both=None,
)
def parameters_of_an_undecorated_class(
    extend: Any, name_prefix: str, metadata_cls: Any, fields: Any
) -> Any:
    """A subclass without a decorator of its own is extended with the decorator's defaults."""
    made = extend(name_prefix, metadata_cls, fields)
    if "__dataclass_params__" in vars(metadata_cls):
        return made
    wrong = make_dataclass(made.__name__, fields, bases=(metadata_cls,))
    wrong.__module__ = metadata_cls.__module__
    return wrong


@mutation(_SUBCLASS, diagnoses=("name is wrong",), both=("invariants",))
def prefix_not_added_twice(subclass: Any, name_prefix: str, backend: Any, builder: Any) -> Any:
    """A backend whose name begins with the prefix keeps its name."""
    made = subclass(name_prefix, backend, builder)
    if backend.__name__.startswith(name_prefix):
        made.__name__ = made.__qualname__ = backend.__name__
    return made


@mutation(
    _SUBCLASS,
    diagnoses=("a backend that was made before is left out",),
    both=("invariants",),
)
def wrapper_of_the_innermost_backend(
    subclass: Any, name_prefix: str, backend: Any, builder: Any
) -> Any:
    """A backend that derives from a made one is left out: the new one derives from the first."""
    made = subclass(name_prefix, backend, builder)
    innermost = getattr(backend, "innermost", backend)
    if innermost is not backend:
        name, made = made.__name__, subclass(name_prefix, innermost, builder)
        made.__name__ = made.__qualname__ = name
    made.innermost = innermost  # classes that derive from the made one inherit it
    return made
