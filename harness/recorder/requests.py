"""The requests of a step: their ids on the engine's thread, numbers in the file."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

import numpy as np

from attnproof.harness.recorder.schema import Step


class Requests:
    """The requests of a step by their ids, copied on the engine's thread."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.computed = np.zeros(0, np.int32)
        """Computed tokens of each row."""
        self.scheduled: dict[str, int] = {}
        self.drafts: dict[str, int] = {}
        self.new: list[str] = []
        self.resumed: list[str] = []
        self.preempted: list[str] = []
        self.finished: list[str] = []
        """Requests that have ended since the last step of the file."""

    def take_rows(self, runner: Any) -> None:
        """Copy the rows; runners without a persistent batch on the CPU have none."""
        batch: Any = getattr(runner, "input_batch", None)
        computed = getattr(batch, "num_computed_tokens_cpu", None)
        if computed is not None:
            self.rows = list(batch.req_ids)
            self.computed = computed[: len(self.rows)].copy()

    def take_schedule(self, scheduled: Any) -> None:
        """Copy what the scheduler has decided."""
        self.scheduled = dict(scheduled.num_scheduled_tokens)
        self.drafts = {r: len(d) for r, d in scheduled.scheduled_spec_decode_tokens.items()}
        self.new = [request.req_id for request in scheduled.scheduled_new_reqs]
        self.preempted = list(getattr(scheduled, "preempted_req_ids", None) or ())
        self.resumed = _resumed(scheduled.scheduled_cached_reqs)


class RequestNumbers:
    """Small numbers in the place of the ids of requests, which stay in the engine."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._next = count()

    def describe(self, step: Step, requests: Requests) -> None:
        """Set the requests of a step, and forget those that have ended."""
        reqs = requests
        step.rows, step.computed = self.of(reqs.rows), reqs.computed.tolist()
        step.scheduled = list(zip(self.of(reqs.scheduled), reqs.scheduled.values(), strict=True))
        step.drafts = list(zip(self.of(reqs.drafts), reqs.drafts.values(), strict=True))
        step.new, step.resumed = self.of(reqs.new), self.of(reqs.resumed)
        step.preempted, step.finished = self.of(reqs.preempted), self.of(reqs.finished)
        for request in reqs.finished:
            self._numbers.pop(request, None)  # it may be named twice

    def of(self, requests: Iterable[str]) -> list[int]:
        """Return the numbers of requests; a new one gets the next."""
        numbers = self._numbers
        return [numbers[r] if r in numbers else self._add(r) for r in requests]

    def _add(self, request: str) -> int:
        number = self._numbers[request] = next(self._next)
        return number


def _resumed(cached: Any) -> list[str]:
    """Return the requests that come back after a preemption, in either form of vLLM."""
    named = getattr(cached, "resumed_req_ids", None)
    if named is not None:
        return list(named)
    flags = getattr(cached, "resumed_from_preemption", None) or ()
    return [req_id for req_id, resumed in zip(cached.req_ids, flags, strict=False) if resumed]
