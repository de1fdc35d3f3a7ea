"""The interface that follows from the batch classes which a candidate's own modules name.

Call it in a worker only: annotations that are texts are evaluated.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import fields
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple, get_args

from attnproof.harness.interfaces import vllm_batch

BATCH = "CommonAttentionMetadata"
LATEST = "vllm-0.32"
"""Interface of the classes that tell which requests are in their prompts."""
_ENGINE = "vllm"
"""Package that has a class of batches."""
LATER_HOME = f"{_ENGINE}.v1.attention.backend"
"""Module of the engine's class since 0.13: it names its interface where no engine is."""


class Choice(NamedTuple):
    """An interface, and why it is a candidate's."""

    interface: str
    reason: str


def chosen_interface(parts: Iterable[Any], default: str) -> Choice:
    """Return the interface whose batches the candidate's functions and classes name.

    An annotation counts more than an import. Without either it is `default`.
    """
    parts = [part for part in parts if _root(part) != "attnproof" and not is_engine_batch(part)]
    named = [(part, cls) for part in parts for cls in _annotated(part)]
    words = "is annotated with"
    if not named:
        named = [(part, cls) for part in parts for cls in _imported(part)]
        words = "is in a module that imports"
    for part, cls in named:
        interface = _interface_of(cls)
        if interface:
            return Choice(interface, f"{_title(part)} {words} {full_name(cls)}")
    if named:
        part, cls = named[0]
        return Choice(default, f"{_title(part)} {words} {full_name(cls)}")
    return Choice(default, "its functions name no engine's class of batches")


def earlier_batch(part: Any) -> Any:
    """Return the class of an earlier engine that a function or class names, None without one."""
    named = [*_annotated(part)] or [*_imported(part)]
    return next((cls for cls in named if _interface_of(cls) not in ("", LATEST)), None)


def has_mirrors(cls: type[Any]) -> bool:
    """True if a batch of the class holds its lengths on the CPU too, as those up to vLLM 0.12."""
    return "seq_lens_cpu" in {f.name for f in fields(cls)}


def is_engine_batch(part: Any) -> bool:
    """True of an engine's own class of batches, which a candidate only imports."""
    return isinstance(part, type) and _is_batch(part) and _root(part) == _ENGINE


def full_name(cls: Any) -> str:
    """Return a class's module and name, the engine's for our stand-in of its class."""
    is_ours = cls is vllm_batch.CommonAttentionMetadata
    return f"{LATER_HOME if is_ours else cls.__module__}.{cls.__qualname__}"


def _title(part: Any) -> str:
    return str(getattr(part, "__qualname__", type(part).__name__))


def _root(part: object) -> str:
    """Return the package of a function, a class, or a module's name."""
    module = part if isinstance(part, str) else getattr(part, "__module__", None)
    return str(module).partition(".")[0]


def _interface_of(cls: type[Any]) -> str:
    """Return the interface of an engine's class, or "" for a class of the reference."""
    base = next(base for base in cls.__mro__ if _is_batch(base))
    if base.__module__.startswith("attnproof.reference."):
        return ""
    names = {f.name for f in fields(base)}
    if "is_prefilling" in names:
        return LATEST
    return "vllm-0.11" if "dcp_local_seq_lens" in names else "vllm-0.10"


def _is_batch(cls: type) -> bool:
    return cls.__name__ == BATCH and _root(cls) in (_ENGINE, "attnproof")


def _batches(value: Any) -> Iterator[type]:
    """Yield the classes of batches in an annotation or in the value of a name."""
    if isinstance(value, type) and any(map(_is_batch, value.__mro__)):
        yield value
    for argument in get_args(value):
        yield from _batches(argument)


def _annotated(part: Any) -> Iterator[type]:
    """Yield the classes of batches that annotate a function, or a class's own methods."""
    functions = [part]
    if inspect.isclass(part):
        functions = [function for function in vars(part).values() if inspect.isfunction(function)]
    for function in functions:
        own = inspect.unwrap(function) if callable(function) else function
        for value in list(getattr(own, "__annotations__", {}).values()):
            yield from _batches(_evaluated(value, own))


def _evaluated(annotation: Any, function: Any) -> Any:
    """Return the value of an annotation, which may be a text."""
    if not isinstance(annotation, str):
        return annotation
    with suppress(Exception):  # a name that does not exist where the program runs
        return eval(annotation, _scope(function))
    return None


def _imported(part: Any) -> Iterator[type]:
    """Yield the classes of batches among the names of the part's module."""
    for value in _scope(part).values():
        yield from _batches(value)


def _scope(part: Any) -> dict[str, Any]:
    """Return the names of the module that defines a part, and those that its source imports."""
    module = sys.modules.get(getattr(part, "__module__", None) or "")
    return {} if module is None else {**_batches_of_source(module), **vars(module)}


@lru_cache(maxsize=100)
def _batches_of_source(module: ModuleType) -> dict[str, Any]:
    """Return the engine's classes that a module's source imports, run or for type checking only."""
    classes = {}
    with suppress(Exception):  # a module without source
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.ImportFrom) and _root(str(node.module)) == _ENGINE:
                for alias in node.names:
                    if alias.name == BATCH:
                        classes[alias.asname or BATCH] = _class_of(str(node.module))
    return classes


def _class_of(module: str) -> Any:
    """Return the engine's class in a module of it; without the engine a stand-in, if any."""
    try:
        return getattr(importlib.import_module(module), BATCH)
    except ImportError:
        return vllm_batch.CommonAttentionMetadata if module == LATER_HOME else None
