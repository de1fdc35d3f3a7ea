"""Requests to stop: signals set a flag, and `check` raises at a place that can handle it.

A signal handler must not raise: it may interrupt code that swallows exceptions, such as a
callback of the garbage collector.
"""

from __future__ import annotations

import signal

_requested = False


def listen() -> None:
    """Let SIGTERM request this process to stop, and ignore Ctrl-C, which its parent handles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _request)


def watch() -> None:
    """Let Ctrl-C and SIGTERM request this process to stop."""
    signal.signal(signal.SIGINT, _request)
    signal.signal(signal.SIGTERM, _request)


def _request(_signal: int, _frame: object) -> None:
    global _requested  # noqa: PLW0603 - a signal handler has no other place
    _requested = True


def check() -> None:
    """Raise KeyboardInterrupt if this process was requested to stop."""
    if _requested:
        raise KeyboardInterrupt
