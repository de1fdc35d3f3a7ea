"""`write_cache_indices` of SGLang, which writes a step's slots in torch or by a Triton kernel."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from attnproof.harness.adapters.single_engines import Bound, home_of, module_of
from attnproof.harness.model.call import Thunk

ALLOCATION = ("sglang.srt.mem_cache.allocation", "sglang.srt.mem_cache.common")
KERNELS = (
    "sglang.kernels.ops.memory.common",
    "sglang.srt.mem_cache.triton_ops.common",
    "sglang.srt.mem_cache.common",
)
"""Modules that may have a release's functions, the latest first."""


def function_of(places: tuple[str, ...], name: str) -> Any:
    """Return a function of SGLang from the first module that defines it (UnfitError)."""
    return getattr(module_of("SGLang", home_of("SGLang", places, name)), name)


def pool_writer(backend: str) -> Bound:
    """Return the writer of an attention backend: "torch_native" in torch, "triton" a kernel."""
    home = module_of("SGLang", home_of("SGLang", ALLOCATION, "write_cache_indices"), *KERNELS)
    # The engine's context and platform decide this; they are placeholders here.
    names = vars(home)
    names["attention_backends"] = lambda: (backend, backend)
    # Releases read the backend's name in places of their own.
    names["support_triton"] = lambda _name: backend != "torch_native"
    names["is_pin_memory_available"] = lambda _device: False

    def bind(
        table: torch.Tensor,
        rows: torch.Tensor,
        prefixes: Any,
        pre_lens: torch.Tensor,
        seq_lens: torch.Tensor,
        extend_lens: torch.Tensor,
        slots: torch.Tensor,
    ) -> Thunk:
        tensors = (rows, pre_lens, seq_lens, extend_lens)
        pairs = [twin for tensor in tensors for twin in (tensor, tensor.cpu())]
        return partial(home.write_cache_indices, slots, *pairs, prefixes, _Pool(table))

    return Bound("write_req_to_token_pool", bind)


class _Pool(SimpleNamespace):
    """The part of SGLang's pool of requests that the writer uses."""

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__(req_to_token=table, device=table.device)

    def write(self, places: Any, values: torch.Tensor) -> None:
        """Write slots to a row's places."""
        self.req_to_token[places] = values
