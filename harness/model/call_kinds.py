"""The kinds of calls: a function and a class here, a sequence in `operations.shared.sequence`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

from attnproof.harness.model.call import Call, Outputs, Thunk
from attnproof.harness.model.case import Case
from attnproof.harness.model.program import Script


class Parts(NamedTuple):
    """The functions and classes that a sequence is run with."""

    names: dict[str, Any]
    own: tuple[str, ...]
    """Names taken from the candidate; the others are the reference's."""


class CallKind(Protocol):
    """A way to call an operation: a function, a class or a sequence."""

    @property
    def compared_by(self) -> str:
        """Name of the oracle that compares outputs with the reference's."""
        ...

    @property
    def takes_arguments(self) -> bool:
        """True if the call has arguments; else purity, late copies and waits are not judged."""
        ...

    @property
    def isolated(self) -> bool:
        """True if each call is made in a process of its own."""
        ...

    @property
    def poisons(self) -> bool:
        """True if the call has memory that may be stale, which is then poisoned."""
        ...

    @property
    def repeatable(self) -> bool:
        """True if the function that `bind` returns can be called again on the same input."""
        ...

    def names(self, operation: str) -> tuple[str, ...]:
        """Return the names under which candidates offer the operation."""
        ...

    def offered(self, own: dict[str, Any], ours: dict[str, Any], *, built_in: bool) -> Any:
        """Return the candidate's function, class or parts for `run`, None if it lacks them.

        `own` are the candidate's names, `ours` the reference's; `built_in` is True for the
        reference and for `optimized`.
        """
        ...

    def prepare(self, case: Case, pattern: int, device: str) -> Call:
        """Return a new call; `pattern` (0 or 1) selects the poison of stale data."""
        ...

    def run(self, offered: Any, call: Call) -> Any:
        """Call the function, instantiate and use the class, or run the sequence."""
        ...

    def outputs(self, call: Call, result: Any) -> Outputs:
        """Return the output fields of a result."""
        ...

    def bind(self, offered: Any, call: Call) -> Thunk:
        """Return the call as a function without arguments, to be timed."""
        ...

    def timed_outputs(self, offered: Any, call: Call, result: Any) -> Outputs:
        """Return the output fields of a result of the function that `bind` returns."""
        ...

    def script(self, case: Case) -> Script | None:
        """Return the program of a sequence, None for a function or class."""
        ...


def bound(offered: Any, *args: Any, **kwargs: Any) -> Thunk:
    """Return the call as a thunk; an adapter converts its arguments here, untimed.

    A function of an adapter may have a method `bind(*args, **kwargs)`, which returns the
    engine's own function with the arguments in the engine's form. If results are in the
    engine's form too, it has a method `unbind(result, *args, **kwargs)`, which converts them.
    """
    binder = getattr(offered, "bind", None)
    if binder is not None:
        thunk: Thunk = binder(*args, **kwargs)
        return thunk
    return partial(offered, *args, **kwargs)


@dataclass(frozen=True, kw_only=True)
class FunctionCall:
    """A function that is called once."""

    prepare: Callable[[Case, int, str], Call]
    """Function from case, poison pattern (0 or 1) and device to a fresh call."""
    outputs: Callable[[Call, Any], Outputs]
    """Function from call and result to output fields."""

    compared_by: ClassVar[str] = "equality"
    takes_arguments: ClassVar[bool] = True
    isolated: ClassVar[bool] = False
    poisons: ClassVar[bool] = True

    @property
    def repeatable(self) -> bool:
        """Always False."""
        return False  # the function may read memory that it writes

    def names(self, operation: str) -> tuple[str, ...]:
        """Return the operation's own name."""
        return (operation,)

    def offered(self, own: dict[str, Any], _ours: dict[str, Any], *, built_in: bool) -> Any:  # noqa: ARG002
        """Return the candidate's function."""
        return next(iter(own.values()), None)

    def run(self, offered: Any, call: Call) -> Any:
        """Call the function."""
        return offered(*call.args.values(), **call.kwargs)

    def bind(self, offered: Any, call: Call) -> Thunk:
        """Return the call as a function without arguments."""
        return bound(offered, *call.args.values(), **call.kwargs)

    def timed_outputs(self, offered: Any, call: Call, result: Any) -> Outputs:
        """Return the output fields of a timed call; an adapter converts its result first."""
        unbind = getattr(offered, "unbind", None)
        if unbind is not None:
            result = unbind(result, *call.args.values(), **call.kwargs)
        return self.outputs(call, result)

    def script(self, _case: Case) -> None:
        """Return None: a function has no program."""


class Clocked(NamedTuple):
    """The part of a class that runs in every engine step, which is timed alone."""

    bind: Callable[[Any, Call], Thunk]
    """Function that instantiates the class and returns the call to time."""
    outputs: Callable[[Call, Any], Outputs]
    """Function from call and result of the timed call to output fields."""


@dataclass(frozen=True, kw_only=True)
class ClassCall(FunctionCall):
    """A class, or a function that returns one: it is instantiated and then used."""

    use: Callable[[Any, Call], Any]
    """Function that instantiates the class with the call's arguments and returns a result."""
    methods: tuple[str, ...] = ()
    """Methods without which a class does not offer the operation."""
    clocked: Clocked | None = None
    """The part to time; `use` is timed if None."""

    @property
    def repeatable(self) -> bool:
        """True if the class is instantiated untimed."""
        return self.clocked is not None

    def offered(self, own: dict[str, Any], ours: dict[str, Any], *, built_in: bool) -> Any:
        """Return the candidate's class unless it is imported from ours or lacks a method."""
        cls = next(iter(own.values()), None)
        imported = any(cls is value for value in ours.values()) and not built_in
        if self.methods and imported:
            return None
        return cls if all(hasattr(cls, name) for name in self.methods) else None

    def run(self, offered: Any, call: Call) -> Any:
        """Instantiate the class and use it."""
        return self.use(offered, call)

    def bind(self, offered: Any, call: Call) -> Thunk:
        """Return the call to time as a function without arguments."""
        if self.clocked is not None:
            return self.clocked.bind(offered, call)
        return partial(self.use, offered, call)

    def timed_outputs(self, offered: Any, call: Call, result: Any) -> Outputs:
        """Return the output fields of a timed call."""
        if self.clocked is not None:
            return self.clocked.outputs(call, result)
        return super().timed_outputs(offered, call, result)
