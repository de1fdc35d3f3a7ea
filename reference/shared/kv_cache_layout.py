"""Memory layout of KV caches, one choice for the whole process (SPEC.md section 7).

Both packages share this state: with two different layouts in one engine, values would
be read as keys.
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
"""Layout of a KV connector that requires no other."""

_chosen: KVCacheLayoutType | None = None


def is_valid_kv_cache_layout(value: object) -> TypeGuard[KVCacheLayoutType]:
    """True if `value` is the name of a layout, exactly "NHD" or "HND". SPEC.md section 7."""
    return isinstance(value, str) and value in _LAYOUTS


def get_kv_cache_layout() -> KVCacheLayoutType:
    """Return the layout that was set, else that of the environment, else the default.

    The environment is VLLM_KV_CACHE_LAYOUT, the default that of a KV connector. Each call
    decides anew, so a later choice takes effect. Raise MetadataError if the variable is
    used and is not the name of a layout. SPEC.md section 7.
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
    """Set the layout of the whole process; None removes the setting.

    Raise MetadataError for a string that is not the name of a layout and TypeError for
    any other value; both leave the setting unchanged. SPEC.md section 7.
    """
    global _chosen  # noqa: PLW0603
    operation = "set_kv_cache_layout"
    if cache_layout is not None and not is_valid_kv_cache_layout(cache_layout):
        layout = cast("object", cache_layout)
        if not isinstance(layout, str):
            kind = type(layout).__name__
            raise TypeError(f"{operation}: cache_layout is {kind}, expected str or None")
        raise MetadataError(operation, "cache_layout", repr(layout), _EXPECTED)
    _chosen = cache_layout
