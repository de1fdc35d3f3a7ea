"""Hooks, and actions after the import of a module: a plugin is loaded before the engine's."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType], None]
_HOOKED = "_attnproof_hooked"


class _Watcher(MetaPathFinder):
    """A finder that lets the other finders find a module, and acts after its import."""

    def __init__(self, actions: dict[str, Action]) -> None:
        self._actions = actions

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,  # noqa: ARG002 (a parameter of the protocol)
        target: ModuleType | None = None,  # noqa: ARG002 (a parameter of the protocol)
    ) -> ModuleSpec | None:
        """Return the spec of a watched module with a loader that acts, None for any other."""
        action = self._actions.pop(name, None)  # popped, so that the search below passes it over
        if action is None:
            return None
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _ActingLoader(spec.loader, action)
        return spec


class _ActingLoader(Loader):
    """A loader that calls a function after the import."""

    def __init__(self, loader: Loader, action: Action) -> None:
        self._loader = loader
        self._action = action

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module as its own loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module, then act."""
        # Whoever asks the module for its loader later gets its own.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._action(module)


def when_imported(actions: dict[str, Action]) -> None:
    """Call each action with the module of its name, now or after its import."""
    for name, action in list(actions.items()):
        module = sys.modules.get(name)
        if module is not None:
            del actions[name]
            action(module)
    if actions:
        sys.meta_path.insert(0, _Watcher(actions))


def replace_method(owner: Any, name: str, make: Callable[[Callable[..., Any]], Any]) -> None:
    """Replace a method or function, unless it is a replacement already."""
    original = getattr(owner, name)
    if not hasattr(original, _HOOKED):
        hook = functools.wraps(original)(make(original))
        setattr(hook, _HOOKED, True)
        setattr(owner, name, hook)
