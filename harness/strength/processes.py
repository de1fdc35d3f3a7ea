"""Run a function in a process of its own for each of many arguments."""

from __future__ import annotations

import gc
import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any, TypeVar

_Result = TypeVar("_Result")


def in_processes(
    function: Callable[..., _Result], arguments: Iterable[tuple[Any, ...]], jobs: int
) -> Iterator[tuple[tuple[Any, ...], _Result | None]]:
    """Yield arguments and result of each call as they end, None for a process without a result.

    At most `jobs` calls run at a time, each in a fork of this process: what is imported here
    need not be imported there, and no call sees what another one changed. Arguments are taken
    when a call can start.
    """
    gc.freeze()  # collections in the forks then skip what is here, and copy no memory of it
    context = multiprocessing.get_context("fork")
    waiting = iter(arguments)
    running: dict[Connection, tuple[tuple[Any, ...], ForkProcess]] = {}
    try:
        while True:
            for call in islice(waiting, jobs - len(running)):
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=_send, args=(sender, function, call))
                process.start()
                sender.close()
                running[receiver] = call, process
            if not running:
                return
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                call, process = running.pop(ready)
                try:
                    result = ready.recv()
                except EOFError:
                    result = None
                ready.close()
                process.join()
                yield call, result
    finally:
        gc.unfreeze()
        for _, process in running.values():
            process.terminate()


def _send(sender: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Call the function and send its result.

    The parent alone answers Ctrl-C: it ends its forks.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sender.send(function(*arguments))
