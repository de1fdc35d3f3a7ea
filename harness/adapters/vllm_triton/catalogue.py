"""Catalogue of vLLM's kernels: the operations of the installed vLLM, reasons for the others."""

from __future__ import annotations

from typing import Any

from attnproof.harness.adapters.vllm.catalogue import KERNELS, made, names
from attnproof.harness.adapters.vllm.installed import UnsupportedVLLMError, minor, version

VERSION = version()
"""Release of the installed vLLM."""
if minor(VERSION) < (0, 32):
    raise UnsupportedVLLMError(f"vLLM {VERSION} has no kernels of sections 13 and 14: 0.32.0 has")

_OTHER = "no kernel: `attnproof list --candidate vllm` says whether vLLM has it"


def offered() -> tuple[dict[str, Any], dict[str, str]]:
    """Return the operations by our names, and a reason for every other one."""
    found = {name: made(entry, name) for name, entry in KERNELS.items()}
    return found, dict.fromkeys(sorted(names() - found.keys()), _OTHER)
