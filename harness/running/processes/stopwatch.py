"""The time that a process and its descendants have taken, which other programs cannot prolong."""

from __future__ import annotations

import time

from attnproof.harness.running.processes.tree import activity_of

INTERVAL_S = 0.1
"""Usual time between two looks at a process, in seconds."""
_LONGEST_IDLE_S = 2 * INTERVAL_S
"""Most seconds that one look may count as idle: the machine, or this process, may have paused."""


class Stopwatch:
    """The time that a process tree has taken since the stopwatch was made.

    While a thread of the tree runs or waits for a core, its CPU time counts; while none does,
    such as in a deadlock, all time does. More than the time that passes never counts, however
    many threads run.
    """

    def __init__(self, pid: int) -> None:
        self.seconds = 0.0
        """Time taken up to the last `look`, in seconds."""
        self._pid = pid
        self._cpu_s: float | None = None
        """CPU time at the last look; None before the first, as to read it takes longer than most
        calls."""
        self._at = time.monotonic()

    def is_due(self, interval_s: float) -> bool:
        """True if the last look was that long ago."""
        return time.monotonic() - self._at >= interval_s

    def look(self) -> float:
        """Add the time since the last look, and return the sum in seconds."""
        now, activity = time.monotonic(), activity_of(self._pid)
        passed, self._at = now - self._at, now
        taken = 0.0 if activity.is_runnable else min(passed, _LONGEST_IDLE_S)
        if self._cpu_s is not None:
            taken = max(taken, min(passed, activity.cpu_s - self._cpu_s))
        self._cpu_s = activity.cpu_s
        self.seconds += taken
        return self.seconds
