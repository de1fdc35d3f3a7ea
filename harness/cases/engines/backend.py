"""A small attention backend whose metadata class is generated in every form.

A class factory has to discover the fields of a metadata class. The classes made here
differ in form (dataclass, frozen, slots, plain) and in how each field gets its value. No
field has the name of a real backend's field.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, make_dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from attnproof.reference.shared import (
    AttentionBackend,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)

DATACLASS, FROZEN, SLOTS, PLAIN, PLAIN_SLOTS = range(5)
"""Forms of a metadata class; the first three are dataclasses."""
REQUIRED, DEFAULT, FACTORY, KEYWORD, COMPUTED, ATTACHED = range(6)
"""Kinds of fields, by the source of the value: a required argument, a default, a default
factory, a keyword-only argument, `__post_init__`, or an assignment after construction."""
BATCH_FIELDS = ("num_actual_tokens", "max_query_len", "query_start_loc", "seq_lens")
"""Fields that every metadata class takes over from the common metadata."""
LOGITS_FIELDS = ("logits_indices_padded", "num_logits_indices")
"""Fields of fast prefill, which a metadata class may have too."""
_NO_LOGITS = -1
"""Value that a builder gives its own fields of that name."""


def field_names(kinds: Sequence[int]) -> list[str]:
    """Return the names of a metadata class's fields other than BATCH_FIELDS."""
    return [f"detail_{number}" for number in range(len(kinds))]


def expected_values(kinds: Sequence[int]) -> dict[str, Any]:
    """Return the values that the builder gives to these fields, by name."""
    values: dict[str, Any] = {}
    for name, number, kind in zip(field_names(kinds), range(len(kinds)), kinds, strict=True):
        by_kind = {DEFAULT: 10 + number, FACTORY: [number], COMPUTED: 200 + number}
        values[name] = by_kind.get(kind, 100 + number)
    return values


def metadata_class(form: int, kinds: Sequence[int], *, logits: bool = False) -> type[Any]:
    """Make a class `EngineMetadata` of the form, with a field for each of `kinds`.

    With `logits` it has fields of its own with the names of LOGITS_FIELDS.
    """
    own = LOGITS_FIELDS if logits else ()
    if form in (PLAIN, PLAIN_SLOTS):
        members: dict[str, Any] = {"__doc__": "Metadata of the small backend."}
        if form == PLAIN:
            return type("EngineMetadata", (), members)
        base = type("EngineMetadataBase", (), {"__slots__": BATCH_FIELDS})
        return type("EngineMetadata", (base,), members | {"__slots__": [*field_names(kinds), *own]})
    specified: list[tuple[str, Any] | tuple[str, Any, Any]] = [
        (name, torch.Tensor if name.endswith(("loc", "lens")) else int) for name in BATCH_FIELDS
    ]
    computed = {}
    details = list(zip(field_names(kinds), kinds, range(len(kinds)), strict=True))
    for name, kind, number in sorted(details, key=lambda detail: detail[1]):
        if kind == REQUIRED:
            specified.append((name, int))
        elif kind == FACTORY:
            specified.append((name, list, field(default_factory=partial(list, (number,)))))
        elif kind == KEYWORD:
            specified.append((name, int, field(kw_only=True)))
        elif kind == COMPUTED:
            specified.append((name, int, field(init=False)))
            computed[name] = 200 + number
        elif kind == DEFAULT or form == SLOTS:  # slots need a declared field
            specified.append((name, int, 10 + number))
    specified += [(name, Any, field(default=_NO_LOGITS, kw_only=True)) for name in own]

    def post_init(self: Any) -> None:
        for name, value in computed.items():
            object.__setattr__(self, name, value)

    return make_dataclass(
        "EngineMetadata",
        specified,
        namespace={
            "__post_init__": post_init,
            "__doc__": "Metadata of the small backend.",
            "__module__": __name__,
        },
        frozen=form == FROZEN,
        slots=form == SLOTS,
        # One form has comparisons. They are never called: comparing tensor fields raises.
        eq=form == FROZEN,
        order=form == FROZEN,
        unsafe_hash=form == SLOTS,
        repr=form != SLOTS,
    )


def make_metadata(
    cls: type[Any],
    form: int,
    kinds: Sequence[int],
    common: CommonAttentionMetadata,
    *,
    logits: bool = False,
) -> Any:
    """Make an instance with `expected_values(kinds)` and the batch's fields."""
    values = {name: getattr(common, name) for name in BATCH_FIELDS}
    details = expected_values(kinds)
    if form in (PLAIN, PLAIN_SLOTS):
        metadata, attached = cls(), values | details
        attached |= dict.fromkeys(LOGITS_FIELDS, _NO_LOGITS) if logits else {}
    else:
        by_name = dict(zip(details, kinds, strict=True))
        taken = [n for n, kind in by_name.items() if kind in (REQUIRED, KEYWORD)]
        metadata = cls(**values, **{name: details[name] for name in taken})
        attached = {n: details[n] for n, kind in by_name.items() if kind == ATTACHED}
    for name, value in attached.items():
        object.__setattr__(metadata, name, value)
    return metadata


class EngineBackend(AttentionBackend):
    """Common part of all backends made here."""

    accept_output_buffer: ClassVar[bool] = True

    @staticmethod
    def get_name() -> str:
        """Return the backend's registered name."""
        return "ENGINE"

    @staticmethod
    def get_impl_cls() -> type[Any]:
        """Raise NotImplementedError: no test runs attention."""
        raise NotImplementedError

    @staticmethod
    def get_state_cls() -> type[Any]:
        """Raise NotImplementedError: no test captures a graph."""
        raise NotImplementedError

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int
    ) -> tuple[int, ...]:
        """Return the shape of a cache with keys and values in its first dimension."""
        return (2, num_blocks, block_size, num_kv_heads, head_size)

    @staticmethod
    def swap_blocks(
        src_kv_cache: torch.Tensor, dst_kv_cache: torch.Tensor, src_to_dst: torch.Tensor
    ) -> None:
        """Do nothing: there is no cache."""

    @staticmethod
    def copy_blocks(kv_caches: list[torch.Tensor], src_to_dists: torch.Tensor) -> None:
        """Do nothing: there is no cache."""


def make_backend(
    form: int, kinds: Sequence[int], *, logits: bool = False
) -> type[AttentionBackend]:
    """Make a backend whose builder makes instances of a `metadata_class(form, kinds)`.

    From its second engine step on the builder makes `later_metadata_cls`, a subclass. It
    records the arguments of each `build` in `given`, and keeps its results in `made`.
    """
    metadata_cls = metadata_class(form, kinds, logits=logits)
    later_cls = type("LaterMetadata", (metadata_cls,), {})

    class EngineBuilder(AttentionMetadataBuilder[Any]):
        """Builder of the metadata of each engine step."""

        def __init__(
            self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
        ) -> None:
            super().__init__(kv_cache_spec, layer_names, vllm_config, device)
            self.given: list[tuple[int, CommonAttentionMetadata, bool]] = []
            self.made: list[Any] = []

        def build(
            self,
            common_prefix_len: int,
            common_attn_metadata: CommonAttentionMetadata,
            fast_build: bool = False,
        ) -> Any:
            """Build the metadata of one engine step."""
            self.given.append((common_prefix_len, common_attn_metadata, fast_build))
            cls = metadata_cls if len(self.given) == 1 else later_cls
            self.made.append(make_metadata(cls, form, kinds, common_attn_metadata, logits=logits))
            return self.made[-1]

    class Backend(EngineBackend):
        """Backend of this builder."""

        later_metadata_cls: ClassVar[type[Any]] = later_cls

        @staticmethod
        def get_metadata_cls() -> type[Any]:
            """Return the class made for this backend."""
            return metadata_cls

        @staticmethod
        def get_builder_cls() -> type[Any]:
            """Return the builder made for this backend."""
            return EngineBuilder

    Backend.__name__ = Backend.__qualname__ = "EngineBackend"
    return Backend


def make_builder(backend: type[Any], device: str = "cpu") -> Any:
    """Instantiate the backend's builder with the arguments of an engine."""
    spec = SimpleNamespace(block_size=16)
    config = SimpleNamespace(speculative_config=None)
    return backend.get_builder_cls()(spec, ["layers.0.attn"], config, torch.device(device))
