"""Make backend, builder and metadata classes at run time (SPEC.md section 6).

Both packages share these functions: they compute nothing. `__module__` of a class made
here is that of the underlying class. The class is not an attribute of that module, so
its instances can be copied but not pickled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, is_dataclass, make_dataclass
from dataclasses import fields as dataclass_fields
from inspect import ismemberdescriptor
from keyword import iskeyword
from types import new_class
from typing import Any

from ..interface.constants import KV_SHARING_FAST_PREFILL_METADATA_FIELDS
from ..interface.errors import MetadataError
from .metadata import CommonAttentionMetadata

_BACKEND, _METADATA = "subclass_attention_backend", "subclass_attention_metadata"
_FAST_PREFILL = "create_fast_prefill_custom_backend"
_FIELD_PARTS = 3


def subclass_attention_metadata(
    name_prefix: str, metadata_cls: type[Any], fields: list[tuple[str, Any, Any]]
) -> type[Any]:
    """Return a dataclass that extends the dataclass `metadata_cls` by `fields`.

    Each field is (name, type, default or `dataclasses.field(...)`) and follows the
    inherited fields. The dataclass parameters (frozen, comparison, representation) are
    those of `metadata_cls`; the name is `name_prefix` followed by its name. Raise
    TypeError for a class that is not a dataclass and for a malformed field,
    MetadataError for a field that exists already. SPEC.md section 6.
    """
    _check_prefix(_METADATA, "name_prefix", name_prefix)
    _check_class(_METADATA, "metadata_cls", metadata_cls)
    if not is_dataclass(metadata_cls):
        got = metadata_cls.__name__
        raise TypeError(f"{_METADATA}: metadata_cls is {got}, expected a dataclass")
    _check_fields(fields, {field.name for field in dataclass_fields(metadata_cls)})
    params: Any = metadata_cls.__dataclass_params__  # type: ignore[attr-defined]
    kept = ("init", "repr", "eq", "order", "unsafe_hash", "frozen")
    subclass: type[Any] = make_dataclass(
        name_prefix + metadata_cls.__name__,
        fields,
        bases=(metadata_cls,),
        **{name: getattr(params, name) for name in kept},
    )
    subclass.__module__ = metadata_cls.__module__  # since Python 3.12 it is the caller's
    return subclass


def subclass_attention_backend(
    name_prefix: str, attention_backend_cls: type[Any], builder_cls: type[Any]
) -> type[Any]:
    """Return a subclass of the backend whose `get_builder_cls()` is `builder_cls`.

    All else is inherited; the name is `name_prefix` followed by the backend's name. Raise
    TypeError for a prefix that is not a string and for arguments that are not classes.
    SPEC.md section 6.
    """
    _check_prefix(_BACKEND, "name_prefix", name_prefix)
    _check_class(_BACKEND, "attention_backend_cls", attention_backend_cls)
    _check_class(_BACKEND, "builder_cls", builder_cls)

    def get_builder_cls() -> type[Any]:
        """Return the class that builds the metadata."""
        return builder_cls

    # Static, as in the abstract class: callable on instances too.
    return _subclass(
        name_prefix, attention_backend_cls, get_builder_cls=staticmethod(get_builder_cls)
    )


def fast_prefill_backend(
    prefix: str,
    underlying_attn_backend: type[Any],
    make_metadata: Callable[[CommonAttentionMetadata], CommonAttentionMetadata],
) -> type[Any]:
    """Implement `create_fast_prefill_custom_backend` with a package's own `make_metadata`."""
    _check_prefix(_FAST_PREFILL, "prefix", prefix)
    _check_class(_FAST_PREFILL, "underlying_attn_backend", underlying_attn_backend)
    if not callable(getattr(underlying_attn_backend, "get_builder_cls", None)):
        got = underlying_attn_backend.__name__
        raise TypeError(
            f"{_FAST_PREFILL}: underlying_attn_backend is {got}, expected an AttentionBackend"
        )
    underlying_builder = underlying_attn_backend.get_builder_cls()
    _check_class(_FAST_PREFILL, "underlying_attn_backend.get_builder_cls()", underlying_builder)
    # One class per class that the underlying builder makes, not one per engine step.
    extended: dict[type[Any], type[Any]] = {}

    def build(
        self: Any,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> Any:
        """Build the underlying metadata of the sampled tokens and add the logits fields."""
        reduced = make_metadata(common_attn_metadata)
        built = underlying_builder.build(self, common_prefix_len, reduced, fast_build)
        cls = extended.get(type(built))
        if cls is None:
            cls = extended[type(built)] = _with_logits_fields(prefix, type(built))
        return _extend(built, cls, common_attn_metadata)

    builder = _subclass(prefix, underlying_builder, build=build)
    return subclass_attention_backend(prefix, underlying_attn_backend, builder)


def _with_logits_fields(prefix: str, metadata_cls: type[Any]) -> type[Any]:
    """Return a subclass of the metadata class that has the two logits fields."""
    if not is_dataclass(metadata_cls):
        try:
            return _subclass(prefix, metadata_cls)
        except TypeError:
            raise _not_extensible(metadata_cls) from None
    present = {field.name for field in dataclass_fields(metadata_cls)}
    missing = [f for f in KV_SHARING_FAST_PREFILL_METADATA_FIELDS if f[0] not in present]
    return subclass_attention_metadata(prefix, metadata_cls, missing)


def _extend(built: Any, cls: type[Any], metadata: CommonAttentionMetadata) -> Any:
    """Return a `cls` with all attributes of `built`, in `__dict__` or slots, and logits fields.

    No `__init__` runs: fields with `init=False` and attributes that were set later are
    copied too. Unset attributes stay unset.
    """
    try:
        extended = object.__new__(cls)
    except TypeError:
        raise _not_extensible(type(built)) from None
    extended.__dict__.update(getattr(built, "__dict__", {}))
    for base in type(built).__mro__:
        for slot in vars(base).values():
            if ismemberdescriptor(slot):
                try:
                    slot.__set__(extended, slot.__get__(built))
                except AttributeError:
                    continue
    for name, *_ in KV_SHARING_FAST_PREFILL_METADATA_FIELDS:
        object.__setattr__(extended, name, getattr(metadata, name))  # frozen classes too
    return extended


def _not_extensible(cls: type[Any]) -> TypeError:
    return TypeError(
        f"{_FAST_PREFILL}: the underlying builder made a {cls.__name__}, "
        "expected an instance of a class of its own"
    )


def _subclass(prefix: str, base: type[Any], **members: Any) -> type[Any]:
    namespace = {"__module__": base.__module__, "__doc__": base.__doc__} | members
    return new_class(prefix + base.__name__, (base,), {}, lambda own: own.update(namespace))


def _check_prefix(operation: str, field: str, prefix: object) -> None:
    if not isinstance(prefix, str):
        raise TypeError(f"{operation}: {field} is {type(prefix).__name__}, expected str")


def _check_class(operation: str, field: str, cls: object) -> None:
    if not isinstance(cls, type):
        raise TypeError(f"{operation}: {field} is {type(cls).__name__}, expected a class")


def _check_fields(fields: object, present: set[str]) -> None:
    """Require (name, type, default) triples whose names are new."""
    if not isinstance(fields, list | tuple):
        got = type(fields).__name__
        raise TypeError(f"{_METADATA}: fields is {got}, expected a list of triples")
    seen = set(present)
    for field in fields:
        triple = isinstance(field, tuple) and len(field) == _FIELD_PARTS
        if not triple or not isinstance(field[0], str):
            raise TypeError(f"{_METADATA}: fields has {field!r}, expected (name, type, default)")
        name, _, default = field
        if not name.isidentifier() or iskeyword(name) or name in seen:
            expected = "an identifier that the class does not have"
            raise MetadataError(_METADATA, "fields", repr(name), expected)
        if not isinstance(default, Field) and type(default).__hash__ is None:
            expected = "field(default_factory=...): all instances would share it"
            raise MetadataError(_METADATA, "fields", f"{name} = {default!r}", expected)
        seen.add(name)
