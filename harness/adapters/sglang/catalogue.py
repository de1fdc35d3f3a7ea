"""Catalogue of SGLang: its functions in each lane, and reasons for the other operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attnproof.harness.adapters.sglang import kernels, twins
from attnproof.harness.adapters.single_engines import divided

_NO_KERNEL = "SGLang has it in torch only, without a Triton kernel: verify it in the lane cpu"
_NO_TWIN = "SGLang has it as a Triton kernel only: verify it with --device interpreter"
_REASONS = {
    "compute_flashinfer_kv_metadata": "SGLang computes it inside its backend's update of a step",
    "get_batch_indices_positions": "FlashInfer's: the candidate flashinfer offers it",
    "batch_sequence": "SGLang's functions keep nothing between steps: each is judged by itself",
    "build_slot_mapping": "out_cache_loc of SGLang is filled by alloc_extend and alloc_decode",
}
_OTHER = "SGLang has no such function"


def offered(*, interpreted: bool) -> tuple[dict[str, Any], dict[str, str]]:
    """Return SGLang's operations of a lane by our names, and a reason for every other one."""
    here, there = (kernels, twins) if interpreted else (twins, kernels)
    makers: dict[str, Callable[[], Any]] = here.OPERATIONS
    absent = dict.fromkeys(there.OPERATIONS, _NO_KERNEL if interpreted else _NO_TWIN)
    return divided(makers, _REASONS | absent, _OTHER)
