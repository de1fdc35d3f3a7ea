"""Catalogue of vLLM's kernels: the operations of the installed vLLM, reasons for the others."""

from __future__ import annotations

from typing import Any

from attnproof.harness.adapters.vllm.catalogue import KERNELS, UnfitError, adapted, names
from attnproof.harness.adapters.vllm.installed import version

VERSION = version()
"""Release of the installed vLLM."""
_OTHER = "no kernel: `attnproof list --candidate vllm` says whether vLLM has it"


def offered() -> tuple[dict[str, Any], dict[str, str]]:
    """Return the operations by our names, and a reason for every other one."""
    operations: dict[str, Any] = {}
    lacking = dict.fromkeys(sorted(names() - KERNELS.keys()), _OTHER)
    for name, entry in KERNELS.items():
        try:
            operations[name] = adapted(entry, name, VERSION)
        except UnfitError as reason:
            lacking[name] = str(reason)
    return operations, lacking
