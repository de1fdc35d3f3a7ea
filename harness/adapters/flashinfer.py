"""The installed FlashInfer as a candidate: `attnproof verify --candidate flashinfer`.

Positions are a Triton kernel behind a function of torch, offered in the lane interpreter and
on a GPU; attention is compiled for a GPU, and offered there only. NOT_OFFERED gives a reason for
every other operation. Importing the module raises ImportError with one line if FlashInfer is
missing.
"""

from __future__ import annotations

import importlib
import sys
from functools import partial
from typing import Any

import torch

from attnproof.harness.adapters import flashinfer_attention as attention
from attnproof.harness.adapters.single_engines import (
    Launch,
    UnfitError,
    divided,
    home_of,
    interprets,
    module_of,
    version_of,
)

VERSION = version_of("flashinfer", "FlashInfer", "flashinfer-python")
"""Release of the installed FlashInfer."""
_NAME, _KERNELS = "get_batch_indices_positions", "flashinfer.triton.page"


def _positions() -> Any:
    home = home_of("FlashInfer", ["flashinfer.page"], _NAME)
    # The function imports its kernels when it is called. They import nothing of FlashInfer.
    sys.modules.setdefault(_KERNELS, module_of("FlashInfer", _KERNELS))
    function = getattr(module_of("FlashInfer", home), _NAME)
    return Launch(_NAME, lambda *args: partial(function, *args))


def _on_gpu(name: str) -> Any:
    try:
        flashinfer = importlib.import_module("flashinfer")
    except Exception as error:
        raise UnfitError(f"FlashInfer cannot be imported: {error}".splitlines()[0]) from None
    return getattr(attention, name)(flashinfer)


_ATTENTION = ("paged_attention", "decode_attention")
_gpu = not interprets() and torch.cuda.is_available()
_offered, NOT_OFFERED = divided(
    ({_NAME: _positions} if interprets() or _gpu else {})
    | ({name: partial(_on_gpu, name) for name in _ATTENTION} if _gpu else {}),
    {
        **dict.fromkeys(_ATTENTION, "FlashInfer has it on a GPU only: --device cuda"),
        _NAME: "FlashInfer has it as a Triton kernel only: verify it with --device interpreter",
        "compute_flashinfer_kv_metadata": "FlashInfer's callers compute it: the candidates vllm "
        "and sglang",
    },
    "FlashInfer has no such function",
)
globals().update(_offered)
