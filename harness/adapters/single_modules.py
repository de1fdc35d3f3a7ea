"""Import single modules of an installed package without the rest of it.

Importing a whole engine asks for a GPU and dozens of packages. Its utilities need few of the
names that their modules import; the others become placeholders.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_file_location
from inspect import isclass, isfunction
from pathlib import Path
from types import ModuleType
from typing import Any

_COMPILED = {"sglang": "sgl_kernel"}
"""Packages of compiled kernels that an engine's modules import, and which need a GPU."""


class Placeholder:
    """Stand-in for an imported name: false; a base without members; a decorator of no effect."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __bool__(self) -> bool:
        return False

    def __call__(self, *args: Any, **_: Any) -> Any:
        """Return a function or class that is decorated, else the placeholder itself."""
        decorated = len(args) == 1 and (isfunction(args[0]) or isclass(args[0]))
        return args[0] if decorated else self

    def __mro_entries__(self, _bases: Any) -> tuple[type[Any], ...]:
        return ()


class _PlaceholderModule(ModuleType):
    """A module whose every name is a placeholder."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Placeholder()


class _Finder:
    """Finds a package's wanted modules by path, and placeholders for all others.

    The package of its compiled kernels has placeholders only.
    """

    def __init__(self, package: str, wanted: Iterable[str]) -> None:
        self._packages = _names_of(package)
        self._root = root_of(package)
        self._wanted = frozenset(wanted)

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        """Return the spec of a module of the packages, None for any other."""
        if name.partition(".")[0] not in self._packages:
            return None
        if name in self._wanted:
            path = self._root.joinpath(*name.split(".")[1:]).with_suffix(".py")
            return spec_from_file_location(name, path)
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a module of placeholders."""
        return _PlaceholderModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module has no code."""


def root_of(package: str) -> Path:
    """Return the folder of an installed package, without importing it (ImportError)."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"no package {package}")
    return Path(next(iter(spec.submodule_search_locations)))


def load_single(name: str, needed: Iterable[str] = ()) -> ModuleType:
    """Import the module `name` and the modules `needed` of its package, nothing else of it.

    All other names that they import from the package are placeholders. `sys.modules` is as
    before afterwards, so that nobody else gets these modules. Raises what the import raises.
    """
    package = name.partition(".")[0]
    with _nothing_of(package), _found_by(_Finder(package, (name, *needed))):
        return importlib.import_module(name)


@contextmanager
def _nothing_of(package: str) -> Iterator[None]:
    """Take a package and its kernels out of the imported modules; put them back afterwards."""
    before = _taken(package)
    try:
        yield
    finally:
        _taken(package)
        sys.modules.update(before)


def _taken(package: str) -> dict[str, ModuleType]:
    packages = _names_of(package)
    names = [name for name in sys.modules if name.partition(".")[0] in packages]
    return {name: sys.modules.pop(name) for name in names}


def _names_of(package: str) -> tuple[str, ...]:
    return tuple(filter(None, (package, _COMPILED.get(package))))


@contextmanager
def _found_by(finder: Any) -> Iterator[None]:
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
