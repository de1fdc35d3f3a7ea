"""Steady conditions for timing: no garbage collection, one thread, one core."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def steady() -> Iterator[None]:
    """Switch off garbage collection, and use one thread and, if possible, one core.

    Collects garbage first, and restores everything at the end. Enter it once for each
    workload: otherwise garbage from making inputs would accumulate.
    """
    import torch

    threads, collects = torch.get_num_threads(), gc.isenabled()
    gc.collect()
    gc.disable()
    torch.set_num_threads(1)
    cores = _pin_to_core()
    try:
        yield
    finally:
        if cores:
            os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)
        if collects:
            gc.enable()


def _pin_to_core() -> set[int]:
    """Keep the process on its current core; return its former cores, none if that fails."""
    try:
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {current_core()} & cores or {max(cores)})
    except (AttributeError, OSError):  # not on every system, not in every container
        return set()
    return cores


def current_core() -> int:
    """Return the core that this process last ran on, as the scheduler chose it (OSError)."""
    after_name = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2]
    return int(after_name.split()[36])  # field 39 of proc(5), the first two cut off
