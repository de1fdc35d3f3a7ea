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
    chunk_unit: int = 1
    """Tokens of which a chunk that does not end its prompt ends at a multiple: states are cached
    there."""
    by_name: dict[str, CacheRequest] = field(default_factory=dict)
    _in_step: set[str] = field(default_factory=set)
    """Requests of the current step."""

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

    def starts_step(self, name: str, joins: bool) -> bool:
        """True if the schedule of a request begins a step; others that `join` do not."""
        starts = not joins or not self._in_step or name in self._in_step
        if starts:
            self._in_step.clear()
        self._in_step.add(name)
        return starts

    def end_step(self) -> None:
        """Let the next request begin a step."""
        self._in_step.clear()

    def new_tokens(self, name: str, hits: int, chunk: int) -> int:
        """Return how many tokens behind computed and hit ones are computed, `chunk` at most.

        Hits that leave no token to compute are wrong: then it is one token.
        """
        first = self.by_name[name].num_computed_tokens + hits
        n = len(self.by_name[name].token_ids)
        end = first + min(chunk, max(1, n - first))
        if end < n:
            end = max(end // self.chunk_unit, first // self.chunk_unit + 1) * self.chunk_unit
        return min(end, max(n, first + 1)) - first

    def uncomputed(self, name: str) -> int:
        """Return the number of tokens to compute, 0 of a request of max_model_len tokens."""
        request = self.by_name[name]
        return len(request.token_ids) - request.num_computed_tokens
