"""Calls without the arguments that have their default, as engines make them."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

_COMPARED = (bool, int, str, type(None))


class WithoutDefaults:
    """A function or class that is called without the arguments that have their default.

    Left out are parameters with a default in both signatures, where the value given is the
    reference's default. A candidate with another default then gives another result.
    """

    def __init__(self, offered: Any, reference: Any) -> None:
        self._offered = offered
        self._own, self._right = _parameters(offered), _parameters(reference)
        self.left_out: list[str] = []
        """Names of the arguments that the calls left out."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._offered, name)

    def __mro_entries__(self, _bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._offered,)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, or instantiate the class."""
        right = list(self._right)[: len(args)]
        own = list(self._own)[: len(args)]
        if len(right) == len(own) == len(args):
            arguments = [*zip(own, right, args, strict=True)]
            arguments += [(name, name, value) for name, value in kwargs.items()]
            default = [self._is_default(*argument) for argument in arguments]
            if any(default):
                first = min(default.index(True), len(args))
                args = args[:first]
                pairs = [*zip(arguments, default, strict=True)][first:]
                kwargs = {name: value for (name, _, value), left_out in pairs if not left_out}
                self.left_out += [name for (name, *_), left_out in pairs if left_out]
        return self._offered(*args, **kwargs)

    def _is_default(self, own: str, right: str, value: Any) -> bool:
        empty = inspect.Parameter.empty
        if self._own.get(own, empty) is empty:
            return False
        default = self._right.get(right, empty)
        return type(value) is type(default) in _COMPARED and bool(value == default)


def _parameters(offered: Any) -> dict[str, Any]:
    """Return the defaults of the parameters that can be given by name, none without any."""
    try:
        return _defaults(offered)
    except Exception:  # without a signature, unhashable, or a class that forbids the look
        return {}


@cache
def _defaults(offered: Any) -> dict[str, Any]:
    parameters = inspect.signature(offered).parameters.values()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    if any(parameter.kind not in named for parameter in parameters):
        return {}
    return {parameter.name: parameter.default for parameter in parameters}
