"""Patches of Triton's interpreter that skip repeated and discarded work."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any


def skip_discarded_checks() -> None:
    """Switch off the interpreter's overflow checks; call it before the first kernel runs.

    The interpreter computes each sum and product of integers a second time, 64 bits wide,
    for an assertion that is made only if its option `debug` is on: a fifth of the time of
    an attention kernel.
    """
    try:
        interpreter = importlib.import_module("triton.runtime.interpreter")
    except ImportError:
        return
    builder: Any = getattr(interpreter, "interpreter_builder", None)
    options: Any = getattr(builder, "options", None)
    if hasattr(options, "sanitize_overflow") and not options.debug:
        builder.options = replace(options, sanitize_overflow=False)


def skip_repeated_work() -> None:
    """Patch the interpreter of this process; the results of kernels do not change."""
    try:
        interpreter = importlib.import_module("triton.runtime.interpreter")
        core = importlib.import_module("triton.language.core")
        semantic = importlib.import_module("triton.language.semantic")
    except ImportError:
        return
    patches: list[tuple[Any, str, Callable[[Any], Any]]] = [
        (interpreter, "_patch_lang", _patched_once),
        (interpreter, "_get_np_dtype", _looked_up_once),
    ]
    if hasattr(semantic, "TritonSemantic"):  # earlier versions make other objects
        patches += [
            (core, "_unwrap_if_constexpr", partial(_unwrapped_by_type, core)),
            (core.tensor, "__init__", _constants_once),
            (core.block_type, "__init__", _blocks_once),
            (core.dtype, "__eq__", _same_first),
            (core.pointer_type, "__eq__", _same_first),
            (semantic.TritonSemantic, "broadcast_impl_value", _alike_first),
        ]
    for owner, name, replacement in patches:
        if hasattr(owner, name):
            setattr(owner, name, replacement(getattr(owner, name)))
    executor = getattr(interpreter, "GridExecutor", None)
    if executor is not None:
        executor.__call__ = _without_profile(executor.__call__)


class _Unrestored:
    """A patch scope that keeps the patches."""

    def restore(self) -> None:
        """Do nothing: every later kernel of this process needs the same patches."""


def _patched_once(patch_lang: Callable[[Any], Any]) -> Callable[[Any], _Unrestored]:
    # The interpreter patches `triton.language` again for each launch and for each call of a
    # device function, some 300 attributes: a fifth of the time of an attention kernel.
    patched: set[Any] = set()

    def patch(function: Any) -> _Unrestored:
        if function not in patched:
            patched.add(function)
            patch_lang(function)
        return _Unrestored()

    return patch


def _looked_up_once(numpy_dtype: Callable[[Any], Any]) -> Callable[[Any], Any]:
    # The interpreter builds a dictionary of all types for each look-up.
    known: dict[str, Any] = {}

    def look_up(triton_type: Any) -> Any:
        name = triton_type.scalar.name
        if name not in known:
            known[name] = numpy_dtype(triton_type)
        return known[name]

    return look_up


# The interpreter makes about nine Python objects for each operation of a kernel. Those below depend
# on types and shapes alone: a third to a half of its time.


def _unwrapped_by_type(core: Any, unwrap: Callable[[Any], Any]) -> Callable[[Any], Any]:
    held = (list, tuple, core.tuple, core.constexpr)
    plain: set[type] = set()
    """Types of values that are returned as they are."""

    def unwrap_by_type(value: Any) -> Any:
        kind = type(value)
        if kind in plain:
            return value
        if issubclass(kind, held):
            return unwrap(value)
        plain.add(kind)
        return value

    return unwrap_by_type


def _constants_once(initialise: Callable[..., None]) -> Callable[..., None]:
    known: dict[tuple[int, ...], tuple[Any, Any]] = {}
    """Shape and number of elements, as constants of a kernel, by shape."""

    def initialise_tensor(tensor: Any, handle: Any, type: Any) -> None:  # noqa: A002
        shape = tuple(type.shape) if type.is_block() else ()
        if shape not in known:
            initialise(tensor, handle, type)
            if vars(tensor).keys() == {"handle", "shape", "numel", "type", "dtype"}:
                known[shape] = tensor.shape, tensor.numel
            return
        tensor.handle, tensor.type, tensor.dtype = handle, type, type.scalar
        tensor.shape, tensor.numel = known[shape]

    return initialise_tensor


def _blocks_once(initialise: Callable[..., None]) -> Callable[..., None]:
    known: dict[tuple[Any, ...], dict[str, Any]] = {}
    """Attributes of the type of a block by the type of its elements and its shape."""

    def initialise_block(block: Any, element_ty: Any, shape: Any) -> None:
        # A pointer cannot be hashed; its name has the type that it points to.
        space = getattr(element_ty, "address_space", None)
        sizes = (getattr(size, "value", size) for size in shape)
        key = (type(element_ty), element_ty.name, space, *sizes)
        if key not in known:
            initialise(block, element_ty, shape)
            known[key] = vars(block).copy()
        else:
            vars(block).update(known[key])

    return initialise_block


def _same_first(equal: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def is_same_or_equal(first: Any, other: Any) -> bool:
        return first is other or equal(first, other)

    return is_same_or_equal


def _alike_first(broadcast: Callable[..., Any]) -> Callable[..., Any]:
    def broadcast_unlike(semantic: Any, lhs: Any, rhs: Any) -> Any:
        first, other = lhs.type, rhs.type
        if first.is_block() and other.is_block() and tuple(first.shape) == tuple(other.shape):
            return lhs, rhs
        return broadcast(semantic, lhs, rhs)

    return broadcast_unlike


def _without_profile(launch: Callable[..., Any]) -> Callable[..., Any]:
    # The determinism oracle watches the calls of a candidate with `sys.setprofile`. A kernel has
    # no host code to watch, and the interpreter makes thousands of calls for it.
    def launch_unprofiled(*args: Any, **options: Any) -> Any:
        profile = sys.getprofile()
        if profile is None:
            return launch(*args, **options)
        sys.setprofile(None)
        try:
            return launch(*args, **options)
        finally:
            sys.setprofile(profile)

    return launch_unprofiled
