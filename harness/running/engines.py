"""Engines that the adapters make candidates of: packages, versions, interfaces.

Imports none of them.
"""

from __future__ import annotations

import importlib.util
from importlib.metadata import packages_distributions, version
from typing import Any, NamedTuple

from attnproof.harness.interfaces import DEFAULT
from attnproof.harness.running.errors import UsageError

ADAPTERS = "attnproof.harness.adapters."
"""Prefix of the adapters' targets."""


class Engine(NamedTuple):
    """A package that an adapter reads functions of."""

    package: str
    title: str
    environment: str
    """tox environment that installs it."""
    page: str
    """Page that describes its adapter."""
    interface: str = ""
    """Interface of all its releases, "" if it depends on the release."""
    kernels: bool = False
    """True if the adapter launches kernels, which check nothing, in other lanes than cpu."""

    @property
    def version(self) -> str:
        """Version of the installed package, "" without one."""
        return installed_version(self.package)


_VLLM = Engine("vllm", "vLLM", "vllm-0.11", "docs/vllm.md")
_ENGINES = (
    _VLLM,
    Engine("sglang", "SGLang", "sglang-0.5", "docs/sglang.md", "sglang-0.5", True),
    Engine("flashinfer", "FlashInfer", "flashinfer-0.7", "docs/sglang.md", "sglang-0.5", True),
)


def engine_of(target: str) -> Engine | None:
    """Return the engine of an adapter's target, None for any other target."""
    if not target.startswith(ADAPTERS):
        return None
    name = target.removeprefix(ADAPTERS)
    found = (engine for engine in _ENGINES if name.startswith(engine.package))
    return next(found, _VLLM)


def require_engine(name: str, target: str) -> None:
    """Check that the engine of candidate `name` is installed (UsageError)."""
    engine = engine_of(target)
    if engine is not None and find_spec(engine.package) is None:
        raise UsageError(
            f"candidate {name}: {engine.title} is not installed; `tox run -e {engine.environment}` "
            f"makes an environment that has it, {engine.page} says how to make one of your own"
        )


def installed_version(package: str) -> str:
    """Return the version of the distribution that has a package, "" without one."""
    distributions = packages_distributions().get(package, [])
    return version(distributions[0]) if distributions else ""


def interface_of(engine: Engine) -> str:
    """Return the interface of an engine's installed release."""
    if engine.interface:
        return engine.interface
    numbers = engine.version.split(".")[:2]
    if len(numbers) < 2 or not all(number.isdigit() for number in numbers):
        return DEFAULT
    release = tuple(map(int, numbers))
    if release < (0, 11):
        return "vllm-0.10"
    return "vllm-0.11" if release < (0, 12) else "vllm-0.32"


def find_spec(name: str) -> Any:
    """Return the spec of a module, None if there is none; imports what precedes its last dot."""
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
