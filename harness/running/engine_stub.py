"""A stub of vLLM, for candidates that import it where it is not installed.

engine_stub.toml lists its names. A name is the reference's function or class, a small utility, or
a placeholder, which can be imported, subclassed and called as a decorator, and nothing else.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from inspect import isfunction
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import torch

from attnproof import reference
from attnproof.harness.backports import tomllib
from attnproof.harness.interfaces import naming, offered_as, vllm_batch
from attnproof.harness.model.candidate import NotProvidedError
from attnproof.harness.model.text import near_hint, nearest
from attnproof.harness.running.engines import find_spec, installed_version
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.placeholders import only_placeholder, placeholder

STUB = "vllm"
"""The only engine that has a stub, and its package."""
_FROM_TRITON = {"triton": "triton", "tl": "triton.language"}
_supplied: dict[int, Any] = {}
"""Values that the stub's modules have returned, by id: kept, so that no other value gets the id."""


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    """The file of the stub's names."""

    values: dict[str, int | float | str]
    """Values of constants."""
    absent: str
    """Functions that ask for a part of the machine or a package: they return False."""
    modules: dict[str, str]
    """Names of each module."""


def check_stub(name: str) -> None:
    """Raise UsageError for a stub that does not exist, or of an installed engine."""
    if name != STUB:
        raise UsageError(f"--stub is {name!r}: {near_hint(name, [STUB], 0.5)}expected {STUB}")
    if find_spec(STUB) is not None:
        version = " ".join(filter(None, ("vLLM", installed_version(STUB))))
        raise UsageError(f"{version} is installed: leave out --stub")


def install_stub(interface: str) -> None:
    """Let the imports of this process find the stub where they find no vLLM.

    `interface` is that of the candidate, "" if it is not known yet.
    """
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder(interface))


def is_of_stub(part: Any) -> bool:
    """True if a module of the stub has returned this object."""
    return id(part) in _supplied


def import_advice(error: ImportError) -> str:
    """Return what to do about a name of vLLM that cannot be imported, "" for any other error."""
    module = error.name or ""
    if module == STUB:
        return f"{error.msg}: install vLLM, or add --stub {STUB}"
    if not isinstance(sys.modules.get(STUB), _Module) or not module.startswith(f"{STUB}."):
        return ""
    if isinstance(error, ModuleNotFoundError):
        near = nearest(module, _modules(), 0)
        return f"the stub of {STUB} has no module {module}: did you mean {near}?"
    name = re.match(r"cannot import name '(\w+)'", error.msg)
    return _no_name(module, name[1]) if name else ""


@cache
def _table() -> _Table:
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), _Table)


@cache
def _modules() -> dict[str, frozenset[str]]:
    """Return the names of each module, and of the packages above."""
    modules = {name: frozenset(names.split()) for name, names in _table().modules.items()}
    parts = [name.split(".") for name in modules]
    packages = {".".join(part[:end]) for part in parts for end in range(1, len(part))}
    return dict.fromkeys(packages, frozenset[str]()) | modules


def _no_name(module: str, name: str) -> str:
    listed = [f"{home}.{each}" for home, names in _modules().items() for each in names]
    elsewhere = [full for full in listed if full.endswith(f".{name}")]
    near = nearest(f"{module}.{name}", elsewhere or sorted(listed), 0)
    return f"the stub of {STUB} has no name {name} in {module}: did you mean {near}?"


class _Finder(MetaPathFinder, Loader):
    """Finder and loader of the stub's modules."""

    def __init__(self, interface: str) -> None:
        self._interface = interface

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        """Return the spec of a listed module, unless the package is another one."""
        ours = isinstance(sys.modules.get(STUB), _Module) or name == STUB
        return ModuleSpec(name, self, is_package=True) if ours and name in _modules() else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a module of the listed names."""
        return _Module(spec.name, self._interface)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module computes its names when they are used."""


class _Module(ModuleType):
    """A module of the stub."""

    def __init__(self, name: str, interface: str) -> None:
        super().__init__(name)
        self._interface = interface

    def __getattr__(self, name: str) -> Any:
        full = f"{self.__name__}.{name}"
        if full in _modules():  # `import vllm` makes the submodules of the real one attributes
            return import_module(full)
        if self.__name__ == f"{STUB}.envs" and name.isupper():
            return os.environ.get(name)
        if name not in _modules()[self.__name__]:
            known = name.startswith("__")
            raise AttributeError(name if known else _no_name(self.__name__, name))
        value = _value(self.__name__, name, self._interface)
        setattr(self, name, value)
        _supplied[id(value)] = value
        return value


def _value(module: str, name: str, interface: str) -> Any:
    """Return the value of a listed name."""
    table = _table()
    if name in table.values:
        return table.values[name]
    if name in table.absent.split() or re.match(r"(is|has|supports)_", name):
        return lambda *_, **__: False
    if re.match(r"get_\w+_parallel_(rank|world_size)$", name):
        return lambda *_: int(name.endswith("_size"))
    if name in _UTILITIES:
        return _UTILITIES[name]
    if name == "HAS_TRITON":
        return find_spec("triton") is not None
    if name in _FROM_TRITON and find_spec("triton") is not None:
        return import_module(_FROM_TRITON[name])
    if name == naming.BATCH:
        return _batch_class(module, interface)
    if name == "AttentionMetadataBuilder" and module.startswith(f"{STUB}.attention"):
        return reference.AttentionMetadataBuilderV0
    ours = getattr(reference, name, None) if name in reference.__all__ else None
    # A protocol is a stand-in for a class that has more. The class of v1 has no fields.
    is_v1 = name == "AttentionMetadata" and module.startswith(f"{STUB}.v1")
    if ours is None or is_v1 or getattr(ours, "_is_protocol", False):
        return placeholder(f"{module}.{name}")
    return _of_both_batches(name, ours) if isfunction(ours) else ours


def _batch_class(module: str, interface: str) -> type[Any]:
    """Return the batch of the releases that have it in the module, or of the interface."""
    is_later = module == naming.LATER_HOME or interface == naming.LATEST
    return vllm_batch.CommonAttentionMetadata if is_later else reference.CommonAttentionMetadata


def _of_both_batches(name: str, ours: Callable[..., Any]) -> Callable[..., Any]:
    """Return the reference's function, for batches of the interface vllm-0.32 too."""
    later = getattr(_later_functions(), name)

    @wraps(ours)
    def call(*args: Any, **kwargs: Any) -> Any:
        values = (*args, *kwargs.values())
        is_later = any(isinstance(value, vllm_batch.CommonAttentionMetadata) for value in values)
        return (later if is_later else ours)(*args, **kwargs)

    return call


@cache
def _later_functions() -> Any:
    return offered_as(naming.LATEST, reference)


def _logger(name: str) -> logging.Logger:
    """Return a logger that has vLLM's methods for a message that is logged once, too."""
    logger = logging.getLogger(name)
    for level in ("debug", "info", "warning", "error"):
        log = getattr(logger, level)
        setattr(logger, f"{level}_once", lambda text, *args, log=log, **_: log(text, *args))
    return logger


class _Platform:
    """A platform without an accelerator."""

    device_type = device_name = "cpu"
    fp8_dtype = staticmethod(lambda: torch.float8_e4m3fn)
    dispatch_key = "CPU"

    def is_cpu(self) -> bool:
        """Return True."""
        return True

    def get_device_capability(self, *_: Any) -> None:
        """Return None: a CPU has no compute capability."""

    def has_device_capability(self, *_: Any, **__: Any) -> bool:
        """Return False."""
        return False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("is_"):
            return lambda *_, **__: False
        raise NotProvidedError(only_placeholder(f"{STUB}.platforms.current_platform", name))


_UTILITIES: dict[str, Any] = {
    "get_layers_from_vllm_config": lambda *_: {},
    "get_dcp_world_size_and_rank": lambda *_: (1, 0),
    "cdiv": lambda a, b: -(-a // b),
    "round_up": lambda x, y: -(-x // y) * y,
    "round_down": lambda x, y: x // y * y,
    "next_power_of_2": lambda n: 1 << max(0, n - 1).bit_length(),
    "get_fp8_min_max": lambda: (-448.0, 448.0),
    "init_logger": _logger,
    "logger": _logger(STUB),
    "current_platform": _Platform(),
}
