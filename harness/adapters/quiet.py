"""Imports of vLLM's modules without their output."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import warnings
from pathlib import Path
from types import ModuleType

_DEVICES = ("/dev/nvidiactl", "/dev/kfd")
"""Files of a machine that has a GPU of NVIDIA or AMD."""


def quietly(name: str) -> ModuleType:
    """Import a module of vLLM without its log, output and warnings."""
    # By default vLLM logs to standard output. Its warnings are about GPUs and compiled
    # operators, which the adapter does not use.
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
    if not any(Path(name).exists() for name in _DEVICES):
        # Otherwise a vLLM that was not built for a CPU asks for pinned memory, which needs a GPU.
        os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
    logger = logging.getLogger("vllm")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)
