"""Guards of drawings, sentences and sections: a mistake in one costs neither verdict nor report.

A part that raises an exception is replaced by a sentence that names the exception. Whoever writes
a report collects these sentences and shows them, as they are faults of attnproof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Part = TypeVar("Part")

_FAULTS: ContextVar[list[str] | None] = ContextVar("_FAULTS", default=None)


def attempt(what: str, make: Callable[[], Part], otherwise: Callable[[str], Part]) -> Part:
    """Return what `make` returns; if it raises, what `otherwise` makes of a sentence on that.

    `what` names the part, such as "the picture of the batch".
    """
    try:
        return make()
    except Exception as error:
        fault = (
            f"{what} could not be made ({type(error).__name__}: {error}); this is a fault of "
            "attnproof and changes no verdict: please report it"
        )
        faults = _FAULTS.get()
        if faults is not None and fault not in faults:
            faults.append(fault)
        return otherwise(fault)


@contextmanager
def collected_faults() -> Iterator[list[str]]:
    """Yield the list of the sentences of all attempts inside the block that failed.

    A block around this one gets them too.
    """
    faults: list[str] = []
    outer = _FAULTS.get()
    token = _FAULTS.set(faults)
    try:
        yield faults
    finally:
        _FAULTS.reset(token)
        if outer is not None:
            outer += [fault for fault in faults if fault not in outer]
