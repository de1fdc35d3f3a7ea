"""The switch of the input checks of `optimized`, which are off by default.

An engine makes well-formed batches, and looking at every tensor of a batch takes longer than
many operations. Without checks the result of malformed input is undefined: loops that take
addresses may even write outside a tensor. With checks it raises the errors of `reference`
before anything is written (SPEC.md rule 0.6).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from attnproof.reference.definition.checking import check_arguments


class Checks:
    """The switch, for all threads of the process."""

    def __init__(self) -> None:
        self._on = False
        self._modules: list[dict[str, Any]] = []

    @property
    def on(self) -> bool:
        """True if operations check their input."""
        return self._on

    @on.setter
    def on(self, on: bool) -> None:
        self._on = on
        for names in self._modules:
            names["_checked"] = on

    def follow(self, names: dict[str, Any]) -> bool:
        """Keep `_checked` of a module, whose `globals()` are given, equal to the switch; return it.

        The shortest operation takes 40 ns. A global is read in 1 ns, this object in 5 ns and a
        ContextVar in 50 ns.
        """
        self._modules.append(names)
        return self._on


checks: Final = Checks()


def check_call(name: str, *args: Any, **kwargs: Any) -> None:
    """Check the arguments of an operation as its reference declares them (rule 0.6)."""
    import attnproof.reference  # noqa: F401, the declarations are those of its signatures

    check_arguments(name, args, kwargs)


@contextmanager
def checked(on: bool = True) -> Iterator[None]:
    """Return a context in which all operations of `optimized` check their input, or do not.

    It holds for all threads of the process. Contexts may be nested.
    """
    before, checks.on = checks.on, on
    try:
        yield
    finally:
        checks.on = before
