"""Requests of an engine: their tokens, and how many of them are computed."""

from __future__ import annotations

from dataclasses import dataclass, field

from attnproof.reference import CacheRequest

_OWN = 1_000
"""Distance between the own prompt tokens of two requests, above all sampled ones."""


@dataclass
class Requests:
    """All requests of a case by name, those that have ended too."""

    max_model_len: int
    by_name: dict[str, CacheRequest] = field(default_factory=dict)

    def add(self, name: str, tokens: int, like: str, shared: int, rejoins: bool) -> CacheRequest:
        """Add a request of `tokens` tokens, the first `shared` at most as the request `like` has.

        The rest of the prompt occurs in no other request. If it `rejoins`, one token is its own
        and those behind it are again as `like` has them: no prefix, but equal blocks.
        """
        length = 1 + (tokens - 1) % self.max_model_len
        first = _OWN * (len(self.by_name) + 1)
        own = list(range(first, first + length))
        if like:
            others = self.by_name[like].token_ids[:length]
            own[: min(shared, len(others))] = others[:shared]
            if rejoins:
                own[shared + 1 : len(others)] = others[shared + 1 :]
        request = CacheRequest(name, own)
        self.by_name[name] = request
        return request

    def advance(self, name: str, tokens: int, sampled: int) -> None:
        """Count tokens as computed; behind the last one the model samples a token."""
        request = self.by_name[name]
        request.num_computed_tokens += tokens
        n = len(request.token_ids)
        if request.num_computed_tokens == n and n < self.max_model_len:
            request.token_ids.append(sampled)

    def uncomputed(self, name: str) -> int:
        """Return the number of tokens to compute, 0 of a request of max_model_len tokens."""
        request = self.by_name[name]
        return len(request.token_ids) - request.num_computed_tokens
