"""The memory layout of KV caches: one choice for the whole process (SPEC.md section 7).

Both packages have this one state: an engine whose two packages disagreed about the
layout would read keys where values lie.
"""

from __future__ import annotations

import os
from typing import Final, TypeGuard, cast, get_args

from ..interface.constants import KVCacheLayoutType
from ..interface.errors import MetadataError

_LAYOUTS: Final[tuple[str, ...]] = get_args(KVCacheLayoutType)
_EXPECTED: Final = " or ".join(_LAYOUTS)
_VARIABLE: Final = "VLLM_KV_CACHE_LAYOUT"
_CONNECTOR_DEFAULT: Final = "NHD"
"""What a KV connector wants that does not say otherwise."""

_chosen: KVCacheLayoutType | None = None


def is_valid_kv_cache_layout(value: object) -> TypeGuard[KVCacheLayoutType]:
    """Whether `value` names a layout: "NHD" or "HND", exactly. SPEC.md section 7."""
    return isinstance(value, str) and value in _LAYOUTS


def get_kv_cache_layout() -> KVCacheLayoutType:
    """The layout that was set, else that of the environment, else the connector's default.

    Decided anew at each call, so that a later choice takes effect. MetadataError if
    VLLM_KV_CACHE_LAYOUT counts and names no layout. SPEC.md section 7.
    """
    if _chosen is not None:
        return _chosen
    value = os.environ.get(_VARIABLE)
    if value is None:
        return _CONNECTOR_DEFAULT
    if not is_valid_kv_cache_layout(value):
        raise MetadataError("get_kv_cache_layout", _VARIABLE, repr(value), _EXPECTED)
    return value


def set_kv_cache_layout(cache_layout: KVCacheLayoutType | None) -> None:
    """Choose the layout for the whole process; None takes the choice back.

    MetadataError for a string that names no layout, TypeError for anything else; the
    choice then stays as it was. SPEC.md section 7.
    """
    global _chosen  # noqa: PLW0603
    operation = "set_kv_cache_layout"
    if cache_layout is not None and not is_valid_kv_cache_layout(cache_layout):
        given = cast("object", cache_layout)
        if not isinstance(given, str):
            kind = type(given).__name__
            raise TypeError(f"{operation}: cache_layout is {kind}, expected str or None")
        raise MetadataError(operation, "cache_layout", repr(given), _EXPECTED)
    _chosen = cache_layout
