"""K27, erratum E9: the first answer is kept, so a layout that is set later is ignored."""

from __future__ import annotations

from functools import lru_cache

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug
from attnproof.reference.interface import KVCacheLayoutType

BUG = Bug("K27", "layout_sequence", "erratum E9", ("an earlier answer was kept",))


@lru_cache
def get_kv_cache_layout() -> KVCacheLayoutType:
    """Decides once."""
    return reference.get_kv_cache_layout()


def set_kv_cache_layout(cache_layout: KVCacheLayoutType | None) -> None:
    """Sets what nobody may read any more."""
    reference.set_kv_cache_layout(cache_layout)
