"""A request to stop, seen where it can be acted on.

Raising from a signal handler is not enough: what the handler interrupts may be code
that swallows exceptions, such as a callback of the garbage collector.
"""

from __future__ import annotations

import signal

_requested = False


def listen() -> None:
    """From now on SIGTERM asks this process to stop; Ctrl-C is left to its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _request)


def watch() -> None:
    """From now on Ctrl-C and SIGTERM ask this process to stop."""
    signal.signal(signal.SIGINT, _request)
    signal.signal(signal.SIGTERM, _request)


def _request(_signal: int, _frame: object) -> None:
    global _requested  # noqa: PLW0603 - a signal handler has no other place
    _requested = True


def check() -> None:
    """Raise KeyboardInterrupt if this process was asked to stop."""
    if _requested:
        raise KeyboardInterrupt
