"""Requests of an engine: their tokens, and how many of them are computed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from attnproof.harness.operations.kv_manager.steps import Schedule
from attnproof.reference import CacheRequest

_OWN = 1_000
"""Distance between the own prompt tokens of two requests, above all sampled ones."""


class Plan(NamedTuple):
    """Tokens of a step, and what its manager knows of the request."""

    known: int
    """Tokens of the request without those of a step in flight."""
    computed: int
    """Computed and hit tokens, drafts of a step in flight among them."""
    in_flight: int
    external: int
    new: int
    lookahead: int

    @property
    def first(self) -> int:
        """First position of the new tokens."""
        return self.computed + self.external

    @property
    def end(self) -> int:
        """Position behind the new tokens."""
        return self.first + self.new


@dataclass
class Requests:
    """The last request of each name, those that have ended too."""

    max_model_len: int
    state_size: int = 0
    """Tokens of which a chunk that does not end its prompt ends at a multiple: states are cached
    there; 0 without states. Drafts' states are not specified."""
    by_name: dict[str, CacheRequest] = field(default_factory=dict)
    loading: set[str] = field(default_factory=set)
    """Requests whose external tokens a connector loads."""
    _flights: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Numbers of each request whose last step has not ended, by name.

    They are its tokens before the step, the drafts that the step rejects, and the tokens that the
    step computes."""
    _num_added: int = 0
    _in_step: set[str] = field(default_factory=set)
    """Requests of the current step."""

    def add(self, name: str, tokens: int, like: str, shared: int, rejoins: bool) -> CacheRequest:
        """Add a request of `tokens` tokens, the first `shared` at most as the request `like` has.

        The rest of the prompt occurs in no other request. If it `rejoins`, one token is its own
        and those behind it are again as `like` has them: no prefix, but equal blocks.
        """
        length = 1 + (tokens - 1) % self.max_model_len
        self._num_added += 1
        first = _OWN * self._num_added
        own = list(range(first, first + length))
        if like:
            others = self.by_name[like].token_ids[:length]
            own[: min(shared, len(others))] = others[:shared]
            if rejoins:
                own[shared + 1 : len(others)] = others[shared + 1 :]
        request = CacheRequest(name, own, num_prompt_tokens=length)
        self.by_name[name] = request
        return request

    def plan(self, name: str, hits: int, step: Schedule) -> Plan:
        """Return what a step computes behind computed and hit tokens.

        Hits that leave no token to compute are wrong: then it is one token.
        """
        request, unit = self.by_name[name], max(1, self.state_size)
        n = len(request.token_ids)
        known, rejected, in_flight = self._flights.get(name, (n, 0, 0))
        computed = request.num_computed_tokens + rejected
        ahead = min(1 + step.drafts, self.max_model_len - computed)
        if in_flight and ahead > 0:
            return Plan(known, computed, in_flight, 0, ahead, step.lookahead)
        computed = request.num_computed_tokens + hits
        external = 0
        if not request.num_computed_tokens:
            external = max(0, min(step.external, n - 1 - computed)) // unit * unit
        if external and step.delayed:
            return Plan(n, computed, 0, external, 0, 0)
        first = computed + external
        end = first + min(step.chunk, max(1, n - first))
        if end < n:
            end = max(end // unit, first // unit + 1) * unit
        end = min(end, max(n, first + 1))
        if end == n and request.num_computed_tokens and not self.state_size:
            end = min(end + step.drafts, self.max_model_len)
        return Plan(n, computed, 0, external, end - first, step.lookahead)

    @contextmanager
    def shown(self, name: str, plan: Plan) -> Iterator[CacheRequest]:
        """Show a request as it is known before the results of a step in flight."""
        request = self.by_name[name]
        tokens, computed = list(request.token_ids), request.num_computed_tokens
        if plan.in_flight:
            del request.token_ids[plan.known :]
            request.num_computed_tokens = plan.computed
            request.num_in_flight_tokens = plan.in_flight
        yield request
        request.token_ids[:] = tokens
        request.num_computed_tokens, request.num_in_flight_tokens = computed, 0

    def advance(self, name: str, hits: int, plan: Plan, step: Schedule) -> None:
        """Count tokens as computed, without rejected drafts; the model samples one behind them."""
        request = self.by_name[name]
        n, tokens = len(request.token_ids), request.token_ids
        end = request.num_computed_tokens + hits + plan.external + plan.new
        rejected = min(step.rejected, max(0, end - n))
        request.num_computed_tokens = end - rejected
        while end >= n and len(tokens) < min(end - rejected + 1, self.max_model_len):
            tokens.append(step.sampled)
        self._flights.pop(name, None)
        if step.ahead and plan.new and end >= n and not self.state_size:
            self._flights[name] = n, rejected, plan.new
        if not plan.new:
            self.loading.add(name)

    def leave(self, name: str) -> None:
        """Let a request have no computed tokens; another request begins a step."""
        self.end_step()
        self.by_name[name].num_computed_tokens = 0
        self.loading.discard(name)
        self._flights.pop(name, None)

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

    def uncomputed(self, name: str) -> int:
        """Return the number of tokens to compute, 0 of a request of max_model_len tokens."""
        request = self.by_name[name]
        return len(request.token_ids) - request.num_computed_tokens
