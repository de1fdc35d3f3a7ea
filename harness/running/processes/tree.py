"""Processes below another one: find them, measure their memory and CPU time, end them."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_POLL_S = 0.01
_MOST_S = 10.0
"""Seconds after which processes that cannot be killed are left alone."""
_NAME_LENGTH = 80


def children_of(pid: int) -> list[int]:
    """Return the process ids of the children, none where /proc shows other processes."""
    # In a container with the host's /proc the numbers there belong to other processes.
    if not _shows_us():
        return []
    return [child for child, parent in _parents() if parent == pid]


def memory_of(pid: int, most: int) -> tuple[int, int]:
    """Return the bytes that a process and its descendants hold, and the number of processes.

    Shared pages are counted in proportion; in full, which is quicker, as long as the sum does
    not exceed `most`.
    """
    if not _shows_us():
        return 0, 1
    tree = [pid, *_descendants(pid)]
    held = sum(map(_resident, tree))
    if held > most:
        held = sum(map(_proportional, tree))
    return held, len(tree)


class Activity(NamedTuple):
    """State and CPU time of a process and its descendants."""

    cpu_s: float
    """CPU time of all of them, and of the children that they have waited for, in seconds."""
    is_runnable: bool
    """True if one of their threads runs, or waits for a core."""


def activity_of(pid: int) -> Activity:
    """Return the activity of a process and its descendants, none if /proc does not show it."""
    if not _shows_us():
        return Activity(0.0, is_runnable=False)
    tree = [pid, *_descendants(pid)]
    ticks = sum(int(field) for each in tree for field in _stat(_PROC / str(each))[11:15])
    threads = (thread for each in tree for thread in _threads(each))
    return Activity(ticks * _TICK_S, any(_stat(thread)[:1] == [b"R"] for thread in threads))


def end_children(
    grace_s: float,
    spared: Collection[int] = (),
    group: int = 0,
    unwanted: dict[int, str] | None = None,
) -> list[str]:
    """End every child of this process except `spared`; return the names of those killed.

    Children that end by themselves with a status in `unwanted` are returned by its name. Each
    has `grace_s` seconds to end by itself. Descendants of an ended child become children
    of this process if it adopts orphans. The process group is ended too, as /proc may show
    other processes.
    """
    killed: dict[int, str] = {}
    statuses: list[int] = []
    begun = time.monotonic()
    while _reap(spared, statuses):
        waited = time.monotonic() - begun
        if waited > grace_s + _MOST_S:
            break
        if waited >= grace_s:
            if not _shows_us():
                killed.setdefault(0, "a process that /proc does not show")
            for child in children_of(os.getpid()):
                if child not in spared:
                    killed.setdefault(child, _name(child))
                    with suppress(ProcessLookupError):
                        os.kill(child, signal.SIGKILL)
            if group:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, signal.SIGKILL)
        time.sleep(_POLL_S)
    names = unwanted or {}
    return [*killed.values(), *(names[status] for status in statuses if status in names)]


def _reap(spared: Collection[int], statuses: list[int]) -> bool:
    """Collect children that have ended and add their exit statuses; True if others are running."""
    if spared:  # their exit status belongs to somebody else
        running = False
        for child in children_of(os.getpid()):
            if child not in spared:
                with suppress(ChildProcessError):
                    running |= not os.waitpid(child, os.WNOHANG)[0]
        return running
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            statuses.append(os.waitstatus_to_exitcode(ended[1]))
    except ChildProcessError:
        return False
    return True


def _shows_us() -> bool:
    try:
        return (_PROC / "self").readlink().name == str(os.getpid())
    except OSError:
        return False


def _parents() -> Iterator[tuple[int, int]]:
    """Yield the ids of each process and of its parent."""
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            for parent in _stat(entry)[1:2]:
                yield int(entry.name), int(parent)


def _stat(entry: Path) -> list[bytes]:
    """Return the fields of a process or thread from its state on, none if it has ended."""
    with suppress(OSError):
        stat = (entry / "stat").read_bytes()
        # The name, in parentheses, may hold anything.
        return stat[stat.rindex(b")") + 2 :].split()
    return []


def _threads(pid: int) -> list[Path]:
    with suppress(OSError):
        return list((_PROC / str(pid) / "task").iterdir())
    return []


def _descendants(pid: int) -> list[int]:
    parents = list(_parents())
    descendants, last = [], {pid}
    while last:
        last = {child for child, parent in parents if parent in last}
        descendants += sorted(last)
    return descendants


def _resident(pid: int) -> int:
    with suppress(OSError):
        return int((_PROC / str(pid) / "statm").read_bytes().split()[1]) * _PAGE
    return 0


def _proportional(pid: int) -> int:
    with suppress(OSError):
        match = re.search(rb"^Pss:\s+(\d+)", _rollup(pid), re.MULTILINE)
        return int(match[1]) * 1024 if match else 0
    return 0


def _rollup(pid: int) -> bytes:
    return (_PROC / str(pid) / "smaps_rollup").read_bytes()


def _name(pid: int) -> str:
    """Return the command line of a process, in short."""
    with suppress(OSError):
        words = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
        return b" ".join(words).decode(errors="replace").strip()[:_NAME_LENGTH]
    return ""
