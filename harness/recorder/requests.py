"""The requests of a step, as numbers in the place of their ids."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

from attnproof.harness.recorder.schema import Step


class RequestNumbers:
    """Small numbers in the place of the ids of requests, which stay in the engine."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._next = count()

    def of(self, requests: Iterable[str]) -> list[int]:
        """Return the numbers of requests; a new one gets the next."""
        numbers = self._numbers
        return [numbers[r] if r in numbers else self._add(r) for r in requests]

    def _add(self, request: str) -> int:
        number = self._numbers[request] = next(self._next)
        return number

    def forget(self, requests: Iterable[str]) -> None:
        """Forget requests that have ended."""
        for request in requests:
            self._numbers.pop(request, None)

    def describe_rows(self, step: Step, runner: Any) -> None:
        """Set the rows of a step; runners without a persistent batch on the CPU have none."""
        batch: Any = getattr(runner, "input_batch", None)
        computed = getattr(batch, "num_computed_tokens_cpu", None)
        if computed is None:
            return
        step.rows = self.of(batch.req_ids)
        step.computed = computed[: len(step.rows)].tolist()

    def describe(self, step: Step, scheduled: Any) -> None:
        """Set what the scheduler has decided."""
        tokens, drafts = scheduled.num_scheduled_tokens, scheduled.scheduled_spec_decode_tokens
        step.scheduled = list(zip(self.of(tokens), tokens.values(), strict=True))
        step.drafts = list(zip(self.of(drafts), map(len, drafts.values()), strict=True))
        step.new = self.of(one.req_id for one in scheduled.scheduled_new_reqs)
        step.finished = self.of(scheduled.finished_req_ids)
        step.preempted = self.of(getattr(scheduled, "preempted_req_ids", None) or ())
        step.resumed = self.of(_resumed(scheduled.scheduled_cached_reqs))


def _resumed(cached: Any) -> list[str]:
    """Return the requests that come back after a preemption, in either form of vLLM."""
    named = getattr(cached, "resumed_req_ids", None)
    if named is not None:
        return list(named)
    flags = getattr(cached, "resumed_from_preemption", None) or ()
    return [one for one, resumed in zip(cached.req_ids, flags, strict=False) if resumed]
