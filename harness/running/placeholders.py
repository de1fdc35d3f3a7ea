"""Placeholders for names of an engine of which a stub has no value."""

from __future__ import annotations

from abc import ABCMeta
from inspect import isclass, isfunction
from typing import Any

from attnproof.harness.model.candidate import NotProvidedError

_ORIGIN = "_attnproof_stub_of"
"""Attribute of a placeholder: its full name."""


def only_placeholder(full: str, attribute: str = "") -> str:
    """Return the line on a use of a placeholder's value, or of its attribute."""
    what = f"has no attribute {attribute}" if attribute else "has no value"
    engine = full.partition(".")[0]
    return f"the stub of {engine} has {full} only as a placeholder, which {what}: install vLLM"


class _PlaceholderType(ABCMeta):
    """The class of placeholders and of the candidate's subclasses of them."""

    def __getattr__(cls, name: str) -> Any:
        origin = _origin(cls)
        if name.startswith("__"):
            raise AttributeError(name)
        if name[0].isupper() and _ORIGIN in vars(cls):
            member = placeholder(f"{origin}.{name}")
            setattr(cls, name, member() if name.isupper() else member)  # of an enum, or a class
            return getattr(cls, name)
        raise NotProvidedError(only_placeholder(origin, name))

    def __bool__(cls) -> bool:
        if _ORIGIN in vars(cls):
            raise NotProvidedError(only_placeholder(_origin(cls)))
        return True


class _Placeholder(metaclass=_PlaceholderType):
    """A name without a value: a base class, a decorator, a member of an enum."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return a decorated function or class, else an object."""
        if _ORIGIN in vars(cls) and not kwargs and _is_decorated(args):
            return args[0]
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __class_getitem__(cls, _: Any) -> Any:
        return cls

    def __call__(self, *args: Any, **_: Any) -> Any:
        """Return the decorated function or class."""
        if _is_decorated(args):
            return args[0]
        raise NotProvidedError(only_placeholder(_origin(type(self))))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        following: Any = getattr(super(), "__getattr__", None)  # of another base, such as a Module
        if following is not None:
            return following(name)
        raise NotProvidedError(only_placeholder(_origin(type(self)), name))

    def __bool__(self) -> bool:
        return bool(type(self))

    def _without_value(self, *_: Any) -> Any:
        raise NotProvidedError(only_placeholder(_origin(type(self))))

    __iter__ = __getitem__ = __index__ = __float__ = _without_value
    __lt__ = __le__ = __gt__ = __ge__ = __add__ = __sub__ = __mul__ = __floordiv__ = _without_value


def _is_decorated(args: tuple[Any, ...]) -> bool:
    return len(args) == 1 and (isfunction(args[0]) or isclass(args[0]))


def _origin(cls: type) -> str:
    """Return the full name of the placeholder, or of that which a class is derived from."""
    return next((vars(base)[_ORIGIN] for base in cls.__mro__ if _ORIGIN in vars(base)), "")


def placeholder(full: str) -> Any:
    """Return a placeholder for a name, such as "vllm.config.VllmConfig"."""
    module, _, name = full.rpartition(".")
    return _PlaceholderType(name, (_Placeholder,), {"__module__": module, _ORIGIN: full})
