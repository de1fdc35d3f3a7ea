"""A parent of the command line, which exits with the code that the command line reports.

An imported package that ends the process, such as by `os._exit(0)`, must not read as success.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from attnproof.harness.running.errors import INCOMPLETE, INFRASTRUCTURE
from attnproof.harness.running.processes.linux import die_with_parent

_PASSED_ON = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_FROM_KERNEL = 0x80
"""`si_code` of a signal of the terminal, which every process of the job gets."""


def supervise(run: Callable[[], int]) -> NoReturn:
    """Exit with the code that `run` returns in a child process, or 5 if the child does not end so.

    An interrupt ends the child with code 3 until `run` handles interrupts itself.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # an ignored one, inherited, hides the status
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})
    receiver, sender = os.pipe()
    sys.stdout.flush()
    supervisor = os.getpid()
    try:
        child = os.fork()
    except OSError as error:
        _complain(f"no process can be started: {error.strerror}")
        sys.exit(INFRASTRUCTURE)
    if not child:
        os.close(receiver)
        _become(run, supervisor, sender, mask)
    os.close(sender)
    code = _wait(child)
    os.set_blocking(receiver, False)  # a process that outlives the child may hold the other end
    reported = b""
    with suppress(BlockingIOError):
        reported = os.read(receiver, 2)
    if reported != bytes([code % 256]):
        how = f"exit code {code}" if code >= 0 else _signal_name(-code)
        _complain(f"the command ended before its last line ({how}): there is no verdict")
        code = INFRASTRUCTURE
    sys.exit(code)


def _signal_name(number: int) -> str:
    """Return the name of a signal; most real-time signals have a number only."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _become(
    run: Callable[[], int], supervisor: int, sender: int, mask: set[int | signal.Signals]
) -> NoReturn:
    """Run, report the code and exit with it, as the child of the supervisor."""
    me = os.getpid()

    def interrupt(_signal: int, _frame: object) -> None:
        _complain("interrupted before anything was verified")
        if os.getpid() == me:  # not a process just forked, which has this handler too
            os.write(sender, bytes([INCOMPLETE]))
        os._exit(INCOMPLETE)

    die_with_parent(supervisor, signal.SIGKILL)
    signal.signal(signal.SIGINT, interrupt)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    code = run()
    os.write(sender, bytes([code]))
    gc.freeze()  # else the exit goes through all objects of torch
    sys.exit(code)


def _wait(child: int) -> int:
    """Pass signals on to the child until it ends; return its exit code, negative for a signal."""
    while True:
        received = signal.sigwaitinfo({*_PASSED_ON, signal.SIGCHLD})
        if received.si_signo != signal.SIGCHLD:
            if received.si_code != _FROM_KERNEL:
                os.kill(child, received.si_signo)
            continue
        ended, status = os.waitpid(child, os.WNOHANG)  # it may only have stopped
        if ended:
            return os.waitstatus_to_exitcode(status)


def _complain(text: str) -> None:
    """Write a line to standard error, which may be closed."""
    with suppress(OSError):
        os.write(2, f"attnproof: {text}\n".encode())
