"""Calls of the Linux kernel that Python has no function for."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from pathlib import Path

_SET_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int, signal_number: signal.Signals) -> None:
    """Get the signal when the parent ends; end now if it has ended already."""
    _prctl(_SET_DEATH_SIGNAL, signal_number)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans(*, adopt: bool = True) -> None:
    """Make this process the parent of every descendant whose own parent ends."""
    _prctl(_SET_CHILD_SUBREAPER, int(adopt))


def close_descriptors(kept: int) -> None:
    """Close every file descriptor above 2 except `kept`."""
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def limit_memory(extra_bytes: int | None) -> None:
    """Let the process grow by at most `extra_bytes` of address space, without limit for None."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = hard
    if extra_bytes is not None:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
        used = int(pages) * resource.getpagesize()
        wanted = used + extra_bytes
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
