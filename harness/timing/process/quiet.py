"""A quiet room: what this process could do to its own timings is switched off."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def quiet() -> Iterator[None]:
    """No garbage collection, one thread, one core where the system allows; restored afterwards.

    What is collectable is collected first. Enter it anew for each workload: what the
    making of inputs leaves behind would pile up otherwise.
    """
    import torch

    threads, collects = torch.get_num_threads(), gc.isenabled()
    gc.collect()
    gc.disable()
    torch.set_num_threads(1)
    cores = _stay_here()
    try:
        yield
    finally:
        if cores:
            os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)
        if collects:
            gc.enable()


def _stay_here() -> set[int]:
    """Keep the process on the core that it runs on; the cores it had, none if it cannot be kept."""
    try:
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {current_core()} & cores or {max(cores)})
    except (AttributeError, OSError):  # not on every system, not in every container
        return set()
    return cores


def current_core() -> int:
    """The core that this process last ran on, where the scheduler found room for it (OSError)."""
    after_name = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2]
    return int(after_name.split()[36])  # field 39 of proc(5), the first two cut off
