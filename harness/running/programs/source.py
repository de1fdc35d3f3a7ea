"""Values of a case as Python source that needs torch alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pprint import pformat
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from attnproof.harness.model.call import Call
from attnproof.harness.oracles.attempt import ATOMS
from attnproof.harness.oracles.equality import words

_MOST_ELEMENTS = 20_000
"""Most elements of all tensors of a program."""


class NoProgramError(Exception):
    """The reason why a case has no program."""


def parts_of(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a value and what it holds, each with its expression."""
    yield path, value
    if isinstance(value, list | tuple | dict):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from parts_of(f"{path}[{key!r}]", item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field, item in vars(value).items():
            yield from parts_of(f"{path}.{field}", item)


class Source:
    """Values as source, and the lines that define their classes."""

    def __init__(self, device: str) -> None:
        self.lines: list[str] = []
        self._device = device
        self._elements = 0
        self._classes: dict[str, type] = {}
        self._names: dict[int, tuple[str, torch.Tensor]] = {}
        """Names and values of the tensors so far, by address."""

    def assign(self, name: str, value: Any, call: Call) -> None:
        """Add the line that gives an argument its value."""
        self.lines.append(f"{name} = {self.of(value, call)}")
        for path, part in parts_of(name, value):
            if isinstance(part, torch.Tensor) and part.numel():
                self._names.setdefault(part.data_ptr(), (path, part))

    def of(self, value: Any, call: Call | None = None) -> str:
        """Return a value as source; tensors lie where those of `call` do, else on the CPU."""
        if type(value) is torch.Tensor:
            return self._tensor(value, call)
        if type(value) is np.ndarray and value.dtype.kind in "biuf":
            return f'np.array({self._numbers(value)}, "{value.dtype}")'
        if type(value) is torch.device:
            return "torch.device(DEVICE)" if value.type == self._device else f"torch.{value!r}"
        if type(value) in ATOMS or isinstance(value, torch.dtype | slice | np.number):
            return repr(value)
        if type(value) in (list, tuple) and len(value) != 1:
            text = ", ".join(self.of(item, call) for item in value)
            return f"[{text}]" if type(value) is list else f"({text})"
        if type(value) in (list, tuple):
            text = self.of(value[0], call)
            return f"[{text}]" if type(value) is list else f"({text},)"
        if type(value) is dict:
            items = [f"{key!r}: {self.of(item, call)}" for key, item in value.items()]
            return f"{{{', '.join(items)}}}"
        return self._object(value, call)

    def _object(self, value: Any, call: Call | None) -> str:
        """Return an object with fields as one of a class that the program defines."""
        cls, name = type(value), type(value).__name__
        known = is_dataclass(cls) or cls is SimpleNamespace
        if not known or self._classes.setdefault(name, cls) is not cls:
            raise NoProgramError(f"a {name} among the values has no source")
        if "<locals>" in cls.__qualname__:  # the operation reads what its fields declare
            raise NoProgramError(f"a {name} among the values is a class of the case")
        self._define(cls)
        items = [f"    {field}={self.of(item, call)}," for field, item in vars(value).items()]
        return "\n".join([f"{name}(", *items, ")"])

    def _define(self, cls: Any) -> str:
        """Add the line that defines a dataclass, unless it is there; return its name."""
        name: str = cls.__name__
        if cls is SimpleNamespace:
            return name
        bases: list[Any] = [
            base for base in cls.__bases__ if base.__name__ != name and is_dataclass(base)
        ]
        inherited = {field.name for base in bases for field in fields(base)}
        own = [field.name for field in fields(cls) if field.name not in inherited]
        names = "".join(f"{self._define(base)}, " for base in bases)
        words = [*map(repr, [name, *own]), *([f"bases=({names})"] if bases else [])]
        line = f"{name} = class_of({', '.join(words)})".replace("'", '"')
        if line not in self.lines:
            self.lines.append(line)
        return name

    def _tensor(self, tensor: torch.Tensor, call: Call | None) -> str:
        device = ", device=DEVICE" if call is not None and _is_on_device(tensor, call) else ""
        path, other = self._names.get(tensor.data_ptr(), ("", tensor))
        if path and tensor.numel() and call is not None:
            if (other.shape, other.stride()) == (tensor.shape, tensor.stride()):
                return path
            raise NoProgramError(f"an argument has the memory of {path}")
        end = f", dtype={tensor.dtype}{device})"
        if not tensor.numel():
            return f"torch.empty({tuple(tensor.shape)}{end}"
        plain, view = tensor.detach().cpu(), ""
        if plain.is_floating_point():
            # NaN has several words, which matter where a cache is copied.
            if plain.double().isnan().any():
                plain, view = words(plain.contiguous()), f".view({tensor.dtype})"
            end = end.replace(str(tensor.dtype), str(plain.dtype))
            plain = plain if view else plain.double()
        text = f"torch.tensor({self._numbers(plain)}{end}{view}"
        if call is None or tensor.is_contiguous():
            return text
        return f"strided({text}, {', '.join(map(str, tensor.stride()))})"

    def _numbers(self, array: Any) -> str:
        self._elements += int(np.prod(array.shape))
        if self._elements > _MOST_ELEMENTS:
            raise NoProgramError(f"its tensors have more than {_MOST_ELEMENTS:,} elements")
        return pformat(array.tolist(), width=96, compact=True)


def _is_on_device(tensor: torch.Tensor, call: Call) -> bool:
    """True if the tensor is one of the call's device, which on the CPU only the arena tells."""
    return tensor.device.type != "cpu" or (
        call.arena is not None and call.arena.is_on_device(tensor)
    )
