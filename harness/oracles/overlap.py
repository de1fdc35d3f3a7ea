"""Oracle 6, determinism, part 3: two calls at once give what they give in turn.

Engines call from several threads: the micro-batches of a step run in two, outputs are made in a
third. Bug classes: scratch memory of a module that another call fills before the first one has
read it, an attribute of a class in the place of one of its instances, a setting of one thread that
another one lacks.

Chance decides where threads meet, so one of them stands still here: at an instruction of the
candidate's Python code, until the other call has ended. Code without the interpreter's lock is not
stopped.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from math import gcd
from threading import Event, Thread
from types import CodeType, FrameType
from typing import Any, NamedTuple

from attnproof.harness.model.place import Place, by_place
from attnproof.harness.model.text import text_of
from attnproof.harness.model.verdict import Failure
from attnproof.harness.oracles.guards import FILLS, GuardedAllocations, new_memory_filled
from attnproof.harness.oracles.later_calls import Overwritten, changed, copied, first_change
from attnproof.harness.oracles.trial import Trial

OVERLAPS = "depends on a call in another thread"
_FEW_LINES = 12
"""Number of lines below which a call stops at instructions within them too."""
_MOST_S = 0.2
"""Time after which no further stop is made, in seconds."""
_MOST_WRITTEN = 4 << 20
"""Bytes of a candidate's output after which no further stop is made: a run ends a flood."""
_PATIENCE_S = 0.05
"""Least time that a stopped call waits for the other one, which may wait for its lock, in
seconds."""
_FOREIGN = sys.stdlib_module_names | {"numba", "numpy", "torch", "triton", "xformers"}
_STATELESS = ("attnproof.harness.", "attnproof.reference")
"""Packages, and beginnings of names of modules, whose instructions are no stops."""


class Stop(NamedTuple):
    """An instruction of the candidate's Python code."""

    code: CodeType
    offset: int
    place: str
    """File and line."""


def overlapped(trial: Trial, other: Trial) -> Overwritten | None:
    """Return the first result that differs if the call of `other` is made within the trial's.

    Both calls must have ended well in turn, and are made in threads of their own.
    """
    alone = [_outputs_alone(each) for each in (trial, other)]
    if not all(alone):
        return None
    begun = time.monotonic()
    with new_memory_filled(FILLS[0]):
        noted = _ThreadedCall(trial, notes=True)
        noted.run(within=lambda: None)
        if noted.error:  # it needs the main thread, as signals do
            return None
        patience_s = max(_PATIENCE_S, 2 * (time.monotonic() - begun))
        for stop in _in_order(list(noted.executed)):
            inner = _ThreadedCall(other)
            outer = _ThreadedCall(trial, stop, patience_s)
            outer.run(within=partial(inner.run, within=lambda: None))
            for before, call in zip(alone, (outer, inner), strict=True):
                if (seen := call.difference(before)) is not None:
                    which = "a call" if call is outer else "a call in another thread"
                    text = f"{which}, while one stands at {stop.place}: {seen.text}"
                    return seen._replace(text=text[:300])
            if time.monotonic() - begun > _MOST_S or _written() > _MOST_WRITTEN:
                break
    return None


def judge(disturbed: Overwritten | None) -> Iterator[Failure]:
    """Yield a failure for a result that another thread's call changes."""
    if disturbed is not None:
        yield changed(
            disturbed,
            diagnosis=OVERLAPS,
            words="two calls at once give another result than in turn",
        )


def _written() -> int:
    """Return the bytes in the files that a worker has for its standard streams."""
    return sum(os.fstat(stream).st_size for stream in (1, 2))


def _outputs_alone(trial: Trial) -> dict[Place, Any]:
    """Return a copy of the outputs of the trial's first call, none if it did not end well."""
    first = trial.first
    if first.error is not None or first.malformed:
        return {}
    return {place: copied(value) for place, value in first.outputs.items()}


def _in_order(stops: list[Stop]) -> list[Stop]:
    """Return the first instruction of each line, or all of few lines, in an order of which each
    beginning is spread over the call.
    """
    lines = list({stop.place: stop for stop in reversed(stops)}.values())[::-1]
    chosen = lines if len(lines) >= _FEW_LINES else stops
    # Steps of the golden ratio leave no large gap; without a common divisor they meet each stop.
    least = round(0.618 * len(chosen))
    step = next(n for n in count(max(1, least)) if gcd(n, len(chosen)) <= 1)
    return [chosen[number * step % len(chosen)] for number in range(len(chosen))]


class _ThreadedCall:
    """A call of a candidate in a thread, which stands still once or notes what it executes."""

    def __init__(
        self,
        trial: Trial,
        stop: Stop | None = None,
        patience_s: float = _PATIENCE_S,
        *,
        notes: bool = False,
    ) -> None:
        self.executed: dict[Stop, None] = {}
        """Instructions of a call that `notes` them."""
        self._trial, self._stop, self._patience_s = trial, stop, patience_s
        self._traces = self._trace if notes or stop is not None else None
        self._call = trial.prepare(0)
        self._outputs: dict[Place, Any] = {}
        self.error = ""
        """Exception of the call in words, "" if it raised none."""
        self._stopped, self._go_on = Event(), Event()

    def run(self, within: Callable[[], object]) -> None:
        """Begin the call, call `within` when it stands still or has ended, and wait for its end."""
        thread = Thread(target=self._run)
        thread.start()
        self._stopped.wait()
        within()
        self._go_on.set()
        thread.join()

    def difference(self, alone: dict[Place, Any]) -> Overwritten | None:
        """Return the first result that is not that of the call alone."""
        if self.error:
            return Overwritten(next(iter(alone)), self.error, "a result", self.error)
        return first_change(alone, self._outputs)

    def _run(self) -> None:
        call_of = self._trial.operation.call
        try:
            with GuardedAllocations(FILLS[0]):
                sys.settrace(self._traces)
                try:
                    result = call_of.run(self._trial.function, self._call)
                finally:
                    sys.settrace(None)
            outputs = by_place(call_of.outputs(self._call, result))
            self._outputs = {place: copied(value) for place, value in outputs.items()}
        except BaseException as error:  # a candidate may raise anything
            self.error = f"raises {type(error).__name__}: {text_of(error, str)}"
        finally:
            self._stopped.set()

    def _trace(self, frame: FrameType, _event: str, _argument: object) -> Any:
        if self._stop is None:
            name = str(frame.f_globals.get("__name__", ""))
            if name.startswith(_STATELESS) or name.partition(".")[0] in _FOREIGN:
                return None
        elif frame.f_code is not self._stop.code:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._trace_instruction

    def _trace_instruction(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event != "opcode":
            pass
        elif self._stop is None:
            place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            self.executed[Stop(frame.f_code, frame.f_lasti, place)] = None
        elif frame.f_lasti == self._stop.offset:
            sys.settrace(None)
            self._stopped.set()
            self._go_on.wait(self._patience_s)
        return self._trace_instruction
