"""Numbers in the place of tokens: two are equal if and only if the tokens before them are too."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

_BYTES = 8
"""Size of a number: of 2**24 prefixes two are confused with a chance of 1 in 100,000."""


@dataclass
class Unnumbered:
    """Tokens of a request that have no numbers yet, copied on the engine's thread."""

    identity: str = ""
    """Adapter, salt and images of a request: its keys depend on them as on its tokens."""
    items: dict[int, str] = field(default_factory=dict)
    """Identifiers of images and other items by their first token."""
    is_new: bool = False
    """True if the request was not named before."""
    first: int = 0
    """Position of the first of these tokens."""
    token_ids: list[int] = field(default_factory=list)


def identity_of(request: Any) -> tuple[str, dict[int, str], bool]:
    """Return identity and items of a request that was not named before."""
    adapter = getattr(request, "lora_request", None)
    names = (adapter.lora_name, adapter.lora_path) if adapter else None
    if getattr(request, "prompt_embeds", None) is not None:
        raise NotImplementedError("a request of embeddings has no tokens")
    features = getattr(request, "mm_features", None) or ()
    items = {each.mm_position.offset: each.identifier for each in features}
    return repr((names, getattr(request, "cache_salt", None))), items, True


class Prefixes:
    """Keyed hashes of prefixes; the key is never written, so that none can be tried out."""

    def __init__(self) -> None:
        self._key = os.urandom(32)
        self._last: dict[int, tuple[bytes, dict[int, str]]] = {}
        """Number of the longest prefix of each request, and its items."""

    def of(self, request: int, tokens: Unnumbered) -> bytes:
        """Return the numbers of the prefixes that end with each token."""
        if tokens.is_new:
            self._last[request] = self._hash(b"", tokens.identity), tokens.items
        if not tokens.token_ids:
            return b""
        number, items = self._last[request]
        numbers = []
        for position, token in enumerate(tokens.token_ids, tokens.first):
            number = self._hash(number, f"{token} {items.get(position, '')}")
            numbers.append(number)
        self._last[request] = number, items
        return b"".join(numbers)

    def forget(self, request: int) -> None:
        """Forget a request that has ended."""
        self._last.pop(request, None)

    def _hash(self, before: bytes, text: str) -> bytes:
        return blake2b(before + text.encode(), key=self._key, digest_size=_BYTES).digest()
