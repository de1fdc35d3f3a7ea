"""Engines of which single modules are imported: their version, lane and functions."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import torch

from attnproof.harness.adapters.single_modules import load_single
from attnproof.harness.model.call import Thunk
from attnproof.harness.operations import ALL
from attnproof.harness.running.engine_source import own_names_of
from attnproof.harness.running.engines import installed_version


class UnsupportedEngineError(ImportError):
    """The engine is not installed, or a module that it has cannot be imported."""


class Bound:
    """An engine's function under our name: `bind` converts the arguments before the clock."""

    def __init__(
        self,
        name: str,
        bind: Callable[..., Thunk],
        unbind: Callable[..., Any] | None = None,
    ) -> None:
        """`unbind` converts the engine's result, given our arguments; None if it is ours."""
        self.__name__ = name
        self.bind = bind
        if unbind is not None:
            self.unbind = unbind

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Convert the arguments, call, convert the result."""
        result = self.bind(*args, **kwargs)()
        unbind = getattr(self, "unbind", None)
        return result if unbind is None else unbind(result, *args, **kwargs)


class Launch(Bound):
    """A kernel under our name, with its tensors packed: kernels without strides take no others."""

    def __init__(
        self,
        name: str,
        bind: Callable[..., Thunk],
        written: int | None = None,
        *,
        row_stride: bool = True,
    ) -> None:
        """`bind` gets packed tensors; `written` is the argument that the kernel writes.

        Without one, the function returns its results. The result of a launch is left out.
        `row_stride` is False for a launch that takes the rows of a table to be packed too.
        """
        super().__init__(name, self._bound)
        self._bind_packed = bind
        self._written = written
        self._row_stride = row_stride

    def _bound(self, *args: Any, **kwargs: Any) -> Thunk:
        packed = [self._packed(value) for value in args]
        call = self._bind_packed(*packed, **kwargs)
        if self._written is None:
            return call
        ours, theirs = args[self._written], packed[self._written]

        def launch() -> None:
            call()
            if theirs is not ours:
                ours.copy_(theirs)

        return launch

    def _packed(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._packed(entry) for entry in value]
        if not isinstance(value, torch.Tensor):
            return value
        apart = self._row_stride and value.dim() == 2 and value.stride(1) == 1
        return value if apart else value.contiguous()


class UnfitError(Exception):
    """The reason that an operation of the installed engine is not offered."""


def version_of(package: str, title: str, distribution: str) -> str:
    """Return the installed release of a package, "" if unknown (UnsupportedEngineError)."""
    if importlib.util.find_spec(package) is None:
        raise UnsupportedEngineError(
            f"{title} is not installed: `pip install --no-deps {distribution}` installs it"
        )
    return installed_version(package)


def home_of(title: str, places: Iterable[str], name: str) -> str:
    """Return the first module that defines the function, by its source (UnfitError)."""
    places = tuple(places)
    for place in places:
        if name in own_names_of(place):
            return place
    raise UnfitError(f"the {title} that is installed has no {name}")


def interprets() -> bool:
    """True in the lane interpreter, where Triton kernels run on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def module_of(title: str, name: str, *needed: str) -> ModuleType:
    """Import a single module of an engine (UnsupportedEngineError)."""
    try:
        return load_single(name, needed)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise UnsupportedEngineError(
            f"{title} is installed, but {name} cannot be imported "
            f"({type(error).__name__}: {reason}): install the wheel again"
        ) from None


def divided(
    makers: dict[str, Callable[[], Any]], reasons: dict[str, str], other: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """Make the offered operations; return them and a reason for every other one.

    A maker raises UnfitError if the engine has no such function. The reason is `other` by default.
    """
    operations: dict[str, Any] = {}
    for name, make in makers.items():
        try:
            operations[name] = make()
        except UnfitError as reason:
            reasons = reasons | {name: str(reason)}
    called = {name for operation in ALL.values() for name in operation.call.names(operation.name)}
    lacking = dict.fromkeys(called | ALL.keys(), other) | reasons
    return operations, {name: reason for name, reason in lacking.items() if name not in operations}
