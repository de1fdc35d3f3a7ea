"""The launches of Triton's kernels in a process, and what Triton compiles them for."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from attnproof.harness.cases.memory.arena import Arena
from attnproof.harness.oracles.recompilation import Argument, Version

_TARGET = ("cuda", 90, 32)
"""Target of the versions: what is specialised does not depend on the card."""
_ALIGNMENT, _ALIGNED = 16, "D"
"""Bytes to which Triton looks whether a pointer is aligned, and its mark of one that is."""
_MOST_TEXT = 60
_RUNNERS = (
    ("triton.runtime.jit", "JITFunction"),
    ("triton.runtime.interpreter", "InterpretedFunction"),
)
"""Classes of kernels, compiled and interpreted."""


class _Launch(NamedTuple):
    kernel: Any
    arguments: dict[str, Any]
    specialised: list[Any]
    """Type of each argument, and the alignment or value for which the kernel is compiled."""
    options: dict[str, Any]
    """Number of warps and the like."""


class Launches:
    """The versions of kernels that the steps of a process launch."""

    def __init__(self, package: str = "") -> None:
        """Leave out kernels of `package`, which is not the candidate's; "" for none."""
        self._package = package
        self.versions: dict[tuple[int | str, ...], Version] = {}
        self._of_step: list[_Launch] = []
        self._binders: dict[int, tuple[Any, Callable[..., Any]]] = {}
        """Kernels, which keeps them alive, and functions that specialise arguments, by id."""

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Return a context in which launches are noted, none if Triton is not imported."""
        classes = [getattr(sys.modules.get(module), name, None) for module, name in _RUNNERS]
        runs = [(kind, kind.run) for kind in classes if kind is not None]
        try:
            for kind, run in runs:
                kind.run = self._noting(run)
            yield
        finally:
            for kind, run in runs:
                kind.run = run

    def end_step(self, step: int, arena: Arena | None) -> None:
        """Add the versions of the launches since the last step; `arena` has the call's inputs."""
        for kernel, arguments, specialised, options in self._of_step:
            pairs = zip(arguments.items(), specialised, strict=True)
            by_name = {name: _argument(value, kind, arena) for (name, value), kind in pairs}
            by_name |= {name: Argument(str(value), str(value)) for name, value in options.items()}
            version = Version(step, kernel.fn.__name__, by_name, id(kernel))
            self.versions.setdefault(version.key, version)
        self._of_step.clear()

    def _noting(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def noting(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
            with suppress(Exception):  # the launch itself raises what is wrong with its arguments
                if not self._is_foreign(kernel):
                    self._of_step.append(_Launch(kernel, *self._bind(kernel, *args, **options)))
            return run(kernel, *args, grid=grid, warmup=warmup, **options)

        return noting

    def _is_foreign(self, kernel: Any) -> bool:
        module: str = kernel.fn.__globals__["__name__"]
        return module.partition(".")[0] == self._package

    def _bind(self, kernel: Any, *args: Any, **options: Any) -> Any:
        if id(kernel) not in self._binders:
            self._binders[id(kernel)] = kernel, _binder(kernel)
        return self._binders[id(kernel)][1](*args, **options)


def _binder(kernel: Any) -> Callable[..., Any]:
    """Return Triton's own function from arguments to their specialisation."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend
    from triton.runtime.jit import KernelParam, create_function_from_signature

    signature = inspect.signature(kernel.fn)
    options = getattr(kernel, "kwargs", None) or vars(kernel)
    names = ("do_not_specialize", "do_not_specialize_on_alignment")
    chosen = [set(options.get(name) or ()) for name in names]  # by name or number
    params = [
        KernelParam(number, each, *(not of.isdisjoint((number, each.name)) for of in chosen))
        for number, each in enumerate(signature.parameters.values())
    ]
    backend = make_backend(GPUTarget(*_TARGET))
    bind: Callable[..., Any] = create_function_from_signature(signature, params, backend)
    return bind


def _argument(value: Any, kind: Any, arena: Arena | None) -> Argument:
    """Return an argument; the buffers of an engine are aligned, unlike those of a case."""
    parts = [str(part) for part in kind if part not in (None, "")]
    if hasattr(value, "data_ptr"):
        base = 0
        if arena is not None and (owner := arena.owner(value)) is not None:
            base = arena.tensors[owner].data_ptr()
        aligned = (value.data_ptr() - base) % _ALIGNMENT == 0
        if base and kind[1] is not None:
            parts = [parts[0], _ALIGNED if aligned else ""]
        return Argument(
            " ".join(parts), f"a pointer{'' if aligned else ' not'} aligned to 16 bytes"
        )
    divisible = " (divisible by 16)" if _ALIGNED in kind[1:] else ""
    return Argument(" ".join(parts)[:_MOST_TEXT], f"{str(value)[:_MOST_TEXT]}{divisible}")
