"""Child processes: how one ended, if it has."""

from __future__ import annotations

import os
import time

_LOOK_UP_SECONDS = 0.01


def ended(pid: int, within_s: float) -> int | None:
    """The wait status of a child that ends within that time, None if it goes on."""
    deadline = time.monotonic() + within_s
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        if time.monotonic() >= deadline:
            return None
        time.sleep(_LOOK_UP_SECONDS)
