"""Decorators that decide which arguments of a kernel make a version of its own.

Triton compiles a kernel again for each integer that is 1 or divisible by 16, and for each
pointer that is aligned or not. A slice's start, a stride and a count differ from step to step,
so a serving engine would compile in the middle of its work. Kernels here have one version for
each combination of dtypes and compile-time constants, which a model fixes.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import torch
import triton

_ALIGNMENT = 16
"""Bytes of the widest load of a thread, to which Triton expects aligned pointers."""
_LANES = 128
"""Fewest lanes of a program of one warp: four a thread, so that few numbers have a version."""


def metadata_kernel(function: Callable[..., Any]) -> Any:
    """Compile a kernel of integers, which gains nothing from aligned pointers or fixed strides."""
    return _jit(function, ())


def data_kernel(*specialised: str) -> Callable[[Callable[..., Any]], Any]:
    """Compile a kernel in two forms: pointers `specialised` are all aligned, or nothing is known.

    `form_for` chooses the form of a launch. A stride is named too where being 1 saves registers.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        kernel = _jit(function, specialised)
        kernel.unaligned = _jit(function, ())
        return kernel

    return decorate


def _jit(function: Callable[..., Any], specialised: Sequence[str]) -> Any:
    """Return a kernel for `launcher.launch`, specialised for no argument but those named."""
    arguments = _arguments(function)
    others = [name for name in arguments if name not in specialised]
    kernel: Any = triton.jit(function, do_not_specialize=others)
    names = list(inspect.signature(function).parameters)
    kernel.specialised = tuple([names.index(name) for name in specialised])
    kernel.resolved = {}
    return kernel


def form_for(kernel: Any, alignment: int) -> Any:
    """Return the form of a `data_kernel` for data and strides of this alignment, in elements."""
    return kernel if alignment > 1 else kernel.unaligned


def alignment_of(data: Iterable[torch.Tensor]) -> int:
    """Return the number of narrowest elements in the widest load, 1 if a pointer isn't aligned.

    More of them together would be a version of its own, and no faster.
    """
    pointers, narrowest = 0, _ALIGNMENT
    for tensor in data:
        pointers |= tensor.data_ptr()
        size = tensor.element_size()
        if size < narrowest:  # a third of the time of `min`
            narrowest = size
    if pointers % _ALIGNMENT:
        return 1
    return _ALIGNMENT // narrowest


@lru_cache(maxsize=256)  # the layers of a model have few layouts
def word_layout(
    pointers: int, run: int, *strides: tuple[int, ...], least: int = 1
) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Return the words that are aligned together, outer strides in units of them, inner strides.

    `pointers` is the `alignment_of` the data, `run` the words of a run. Words are single where an
    inner stride is not 1, or less than `least` of them are aligned.
    """
    outer = [stride for each in strides for stride in each[:-1]]
    inner = tuple([each[-1] for each in strides])
    aligned = math.gcd(pointers, run, *outer) if set(inner) == {1} else 1
    aligned = aligned if aligned >= least else 1
    return aligned, tuple([stride // aligned for stride in outer]), inner


def lanes_for(most: int) -> int:
    """Return lanes for at most `most` entries, of a program of one warp."""
    return max(_LANES, power_of_two(most))


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is at least `number`."""
    return 1 << max(0, number - 1).bit_length()


def _arguments(function: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments that are no compile-time constants."""
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if "constexpr" not in str(each.annotation)]
