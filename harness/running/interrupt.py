"""Requests to stop: signals set a flag, and `check` raises at a place that can handle it.

A signal handler must not raise: it may interrupt code that swallows exceptions, such as a
callback of the garbage collector.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

_requested = False


def listen(parent: int) -> None:
    """Let SIGTERM request this process to stop, and ignore Ctrl-C, which its parent handles.

    The process ends at once if its parent has ended.
    """

    def request(number: int, frame: object) -> None:
        if os.getppid() != parent:
            os._exit(1)
        _request(number, frame)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, request)


@contextmanager
def restored_handlers() -> Iterator[None]:
    """Give Ctrl-C, SIGTERM and SIGHUP back their handlers at the end of the block."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    usual = {number: signal.getsignal(number) for number in signals}
    try:
        yield
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)


def watch() -> None:
    """Let Ctrl-C, SIGTERM and the end of the terminal request a stop; forget earlier requests."""
    acknowledge()
    signal.signal(signal.SIGINT, _request)
    signal.signal(signal.SIGTERM, _request)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as `nohup` sets it
        signal.signal(signal.SIGHUP, _request)


def _request(_signal: int, _frame: object) -> None:
    global _requested  # noqa: PLW0603 - a signal handler has no other place
    _requested = True


def acknowledge() -> None:
    """Forget the request: what follows takes a limited time."""
    global _requested  # noqa: PLW0603
    _requested = False


def check() -> None:
    """Raise KeyboardInterrupt if this process was requested to stop."""
    if _requested:
        raise KeyboardInterrupt
