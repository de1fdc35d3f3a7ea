"""Functions of a candidate whose code names kernels of Triton, which a CPU cannot run."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any


def names_kernel(part: Any, package: str) -> bool:
    """True if a function, or a method of a class, names a kernel, or what it names does.

    Functions of other installed packages than the candidate's are not followed.
    """
    kernel = getattr(sys.modules.get("triton.runtime.jit"), "KernelInterface", None)
    if kernel is None:
        return False
    known, waiting = set[int](), [part]
    if isinstance(part, type):  # a table's class has the module of this package
        waiting += vars(part).values()
    while waiting:
        value = waiting.pop()
        if isinstance(value, kernel) and _root(_function_of(value)) != "triton":  # as `tl.cdiv` is
            return True
        if id(value) not in known:
            known.add(id(value))
            waiting += _named_by(value, package)
    return False


def _function_of(kernel: Any) -> Any:
    """Return the function that was decorated, once or more."""
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    return kernel


def _named_by(value: Any, package: str) -> Iterator[Any]:
    """Yield what a function, a class or an object of the candidate names."""
    if isinstance(value, partial):
        yield value.func
    for attribute in ("__func__", "__wrapped__", "fget"):  # of a method, a decorator, a property
        yield from filter(None, [getattr(value, attribute, None)])
    if isinstance(value, FunctionType):
        yield from _contents(value)
    if isinstance(value, ModuleType) or not _is_own(value, package):
        return
    if isinstance(value, FunctionType):
        yield from _of_names(value.__globals__, set(_names(value.__code__)))
    elif isinstance(value, type):
        for base in value.__mro__:
            yield from vars(base).values() if _is_own(base, package) else ()
    else:
        yield type(value)


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names in the code of a function, and of those inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _of_names(scope: dict[str, Any], names: Iterable[str]) -> Iterator[Any]:
    """Yield the values of names, and of attributes of modules among them."""
    values = [scope[name] for name in names if name in scope]
    known = {id(scope)}
    while values:
        value = values.pop()
        yield value
        if isinstance(value, ModuleType) and id(value) not in known:
            known.add(id(value))
            values += [vars(value)[name] for name in names if name in vars(value)]


def _contents(function: FunctionType) -> Iterator[Any]:
    """Yield the values that a function holds of the function around it."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not bound yet
            continue


def _root(value: Any) -> str:
    return str(getattr(value, "__module__", "")).partition(".")[0]


def _is_own(value: Any, package: str) -> bool:
    """True if a value is of the candidate's package, or of no installed one."""
    root = _root(value)
    if root in ("attnproof", "builtins", *sys.stdlib_module_names):
        return root == package
    path = str(getattr(sys.modules.get(root), "__file__", "") or "")
    return root == package or "-packages" not in path
