"""Engines that the adapters make candidates of: packages, versions, interfaces.

Imports none of them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from importlib.metadata import packages_distributions, version
from typing import Any, NamedTuple

from attnproof.harness.documents import page_address
from attnproof.harness.interfaces import DEFAULT
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.running.engine_source import members_of, names_of
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.releases import TRIED, nearest

ADAPTERS = "attnproof.harness.adapters."
"""Prefix of the adapters' targets."""
BATCH_PLACES = ("v1.attention.backend", "v1.attention.backends.utils")
"""Modules below `vllm` that may have its batch, the later one first."""
V0_UTILS = "attention.backends.utils"
"""Module below `vllm` of the first generation of engines."""


class Engine(NamedTuple):
    """A package that an adapter reads functions of."""

    package: str
    title: str
    environment: str
    """tox environment that installs it."""
    page: str
    """Name of the page that describes its adapter."""
    interface: str = ""
    """Interface of all its releases, "" if it depends on the release."""
    kernels: bool = False
    """True if the adapter launches kernels, which check nothing, in other lanes than cpu."""

    @property
    def version(self) -> str:
        """Version of the installed package, "" without one."""
        return installed_version(self.package)

    @property
    def release(self) -> str:
        """Tried release that is nearest to the installed one: its known deviations hold."""
        return nearest(self.package, self.version)

    @property
    def untried(self) -> str:
        """Warning about an untried release, "" for a tried one."""
        if not self.version or self.version.partition("+")[0] in TRIED[self.package]:
            return ""
        return (
            f"{self.title} {self.version} was not tried: what it offers is judged, with the known "
            f"deviations of {self.release}; {page_address(self.page)} names the tried releases"
        )


_VLLM = Engine("vllm", "vLLM", "vllm-0.11", "vllm")
_ENGINES = (
    _VLLM,
    Engine("sglang", "SGLang", "sglang-0.5", "sglang", "sglang-0.5", True),
    Engine("flashinfer", "FlashInfer", "flashinfer-0.7", "sglang", "sglang-0.5", True),
)


def engine_of(target: str) -> Engine | None:
    """Return the engine of an adapter's target, None for any other target."""
    if not target.startswith(ADAPTERS):
        return None
    name = target.removeprefix(ADAPTERS)
    matching = (engine for engine in _ENGINES if name.startswith(engine.package))
    return next(matching, _VLLM)


def title_of(name: str) -> str:
    """Return the title of the engine whose package the name begins with."""
    return next(engine.title for engine in _ENGINES if name.startswith(engine.package))


def require_engine(name: str, target: str) -> None:
    """Check that the engine of candidate `name` is installed (UsageError)."""
    engine = engine_of(target)
    if engine is not None and find_spec(engine.package) is None:
        raise UsageError(
            f"candidate {name}: {engine.title} is not installed; `tox run -e {engine.environment}` "
            f"makes an environment that has it, {page_address(engine.page)} says how to make one "
            "of your own"
        )


def untried_notes(candidates: Iterable[Candidate]) -> list[str]:
    """Return a sentence on each engine of the candidates whose release was not tried."""
    engines = filter(None, (engine_of(candidate.target) for candidate in candidates))
    return list(dict.fromkeys(engine.untried for engine in engines if engine.untried))


def installed_version(package: str) -> str:
    """Return the version of the distribution that has a package, "" without one."""
    distributions = packages_distributions().get(package, [])
    return version(distributions[0]) if distributions else ""


def interface_of(engine: Engine) -> str:
    """Return the interface of an engine's installed release."""
    if engine.interface:
        return engine.interface
    batches = (members_of(f"vllm.{place}", "CommonAttentionMetadata") for place in BATCH_PLACES)
    fields = next(filter(None, batches), frozenset())
    if "is_prefilling" in fields:
        return "vllm-0.32"
    if "compute_slot_mapping" in names_of(f"vllm.{V0_UTILS}"):
        return "vllm-0.10"
    return "vllm-0.11" if fields else DEFAULT


def find_spec(name: str) -> Any:
    """Return the spec of a module, None if there is none; imports what precedes its last dot."""
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
