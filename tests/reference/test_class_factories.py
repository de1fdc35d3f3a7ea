"""Tests of the class factories of SPEC.md section 6: extended classes and errors."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from typing import NamedTuple

import pytest

from attnproof import reference
from attnproof.reference import KV_SHARING_FAST_PREFILL_METADATA_FIELDS as LOGITS
from attnproof.reference import CommonAttentionMetadata, KVSharingFastPrefillMetadata, MetadataError


@dataclass
class Plain:
    seq_len: int
    label: str = "x"


class Builder:
    """Builder that returns `made`."""

    made: object = None

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        return self.made


class Backend:
    @staticmethod
    def get_builder_cls():
        return Builder


def build(make_metadata, made, package=reference):
    """Return what the fast-prefill builder builds if the underlying builder returns `made`."""
    backend = package.create_fast_prefill_custom_backend("Fast", Backend)
    builder = backend.get_builder_cls()()
    builder.made = made
    return builder.build(0, make_metadata([3], [5]))


def test_added_fields_have_their_defaults():
    made = reference.subclass_attention_metadata("Fast", Plain, LOGITS)
    assert (made.__name__, made.__module__) == ("FastPlain", Plain.__module__)
    assert [f.name for f in fields(made)] == [
        *("seq_len", "label", "logits_indices_padded", "num_logits_indices")
    ]
    instance = made(4)
    assert isinstance(instance, KVSharingFastPrefillMetadata)
    assert (instance.label, instance.logits_indices_padded) == ("x", None)
    assert replace(instance, num_logits_indices=2).num_logits_indices == 2


def test_a_frozen_class_stays_frozen():
    frozen = dataclass(frozen=True)(type("Frozen", (), {"__annotations__": {"size": int}}))
    instance = reference.subclass_attention_metadata("My", frozen, [("more", int, 1)])(3)
    assert hash(instance) == hash(type(instance)(3))
    with pytest.raises(FrozenInstanceError):
        instance.more = 2


def test_lists_are_made_for_each_instance():
    added = [("more", list, field(default_factory=list))]
    made = reference.subclass_attention_metadata("My", Plain, added)
    assert made(1).more is not made(1).more


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ([("label", int, 0)], "'label', expected an identifier that the class does not have"),
        ([("a b", int, 0)], "'a b', expected an identifier"),
        ([("more", list, [])], r"more = \[\], expected field\(default_factory"),
    ],
)
def test_fields_that_cannot_be_added_are_errors(added, message):
    with pytest.raises(MetadataError, match=message):
        reference.subclass_attention_metadata("My", Plain, added)


@pytest.mark.parametrize("cls", [int, Builder, 7, None])
def test_classes_that_are_not_dataclasses_are_errors(cls):
    with pytest.raises(TypeError, match="metadata_cls"):
        reference.subclass_attention_metadata("My", cls, [])


class Pair(NamedTuple):
    one: int


@pytest.mark.parametrize("made", [None, 7, Pair(1), (1, 2), True])
def test_metadata_that_cannot_be_extended_is_an_error(make_metadata, made):
    with pytest.raises(TypeError, match=f"made a {type(made).__name__}, expected an instance"):
        build(make_metadata, made)


def test_unset_slots_stay_unset(make_metadata):
    class Slotted:
        __slots__ = ("__hidden", "filled", "unfilled")

        def hide(self):
            self.__hidden = 3
            return self

        def hidden(self):
            return self.__hidden

    slotted = Slotted().hide()
    slotted.filled = 1
    extended = build(make_metadata, slotted)
    assert (extended.filled, extended.hidden()) == (1, 3)
    assert not hasattr(extended, "unfilled")


def test_existing_logits_fields_get_the_values_of_the_batch(make_metadata):
    @dataclass
    class WithLogits:
        num_logits_indices: int = 5

    extended = build(make_metadata, WithLogits())
    assert extended.num_logits_indices is None
    assert extended.logits_indices_padded is None


def test_metadata_of_the_underlying_builder_is_not_changed(make_metadata):
    plain = Plain(4)
    plain.attached = [1]
    extended = build(make_metadata, plain)
    assert extended.attached is plain.attached
    assert not hasattr(plain, "logits_indices_padded")
    assert type(plain) is Plain


@dataclass(frozen=True)
class Frozen:
    size: int
    doubled: int = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "doubled", 2 * self.size)


@dataclass(slots=True)
class Slotted:
    size: int


class Ordinary:
    def __init__(self, size):
        self.size = size


@pytest.mark.spec("E43: published code carries over declared fields only, and only of dataclasses")
@pytest.mark.parametrize(
    ("cls", "held"),
    [(Frozen, {"doubled": 8}), (Slotted, {}), (Ordinary, {}), (Ordinary, {"attached": 7})],
)
def test_metadata_of_any_class_keeps_all_attributes(package, make_metadata, cls, held):
    made = cls(4)
    if "attached" in held:
        made.attached = 7
    extended = build(make_metadata, made, package)
    assert isinstance(extended, cls)
    assert isinstance(extended, KVSharingFastPrefillMetadata)
    assert {name: getattr(extended, name) for name in held} == held
    assert extended.size == 4


@pytest.mark.spec("E44: a class made by either has another module")
def test_a_made_class_keeps_the_module_and_dataclass_options(package):
    ordered = dataclass(order=True, repr=False)(type("Step", (), {"__annotations__": {"n": int}}))
    ordered.__module__ = "engine.metadata"
    made = package.subclass_attention_metadata("My", ordered, [("more", int, 0)])
    assert made.__module__ == "engine.metadata"
    assert made(1) < made(2)
    assert repr(made(1)).startswith("<engine.metadata.MyStep object")
    backend = type("Backend", (), {"__module__": "engine.backends"})
    made = package.subclass_attention_backend("My", backend, Builder)
    assert (made.__name__, made.__module__) == ("MyBackend", "engine.backends")


@pytest.mark.parametrize("backend", [Builder, int, CommonAttentionMetadata])
def test_classes_that_are_not_backends_are_errors(backend):
    with pytest.raises(TypeError, match="expected an AttentionBackend"):
        reference.create_fast_prefill_custom_backend("Fast", backend)
