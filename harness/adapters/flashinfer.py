"""The installed FlashInfer as a candidate: `attnproof verify --candidate flashinfer`.

Its one operation is a Triton kernel behind a function of torch, so that it is offered in the
lane interpreter. NOT_OFFERED gives a reason for every other operation. Importing the module
raises ImportError with one line if FlashInfer is missing or its version is not supported.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from attnproof.harness.adapters.single_engines import (
    Launch,
    divided,
    interprets,
    module_of,
    supported,
)

VERSION = supported("flashinfer", "FlashInfer", ("0.7.2.post1",), "flashinfer-python")
"""Release of the installed FlashInfer."""
_NAME, _KERNELS = "get_batch_indices_positions", "flashinfer.triton.page"


def _found() -> dict[str, Any]:
    if not interprets():
        return {}
    # The function imports its kernels when it is called. They import nothing of FlashInfer.
    sys.modules.setdefault(_KERNELS, module_of("FlashInfer", _KERNELS))
    function = getattr(module_of("FlashInfer", "flashinfer.page"), _NAME)
    return {_NAME: Launch(_NAME, lambda *args: partial(function, *args))}


_offered, NOT_OFFERED = divided(
    _found(),
    {
        _NAME: "FlashInfer has it as a Triton kernel only: verify it with --device interpreter",
        "compute_flashinfer_kv_metadata": "FlashInfer's callers compute it: the candidates vllm "
        "and sglang",
    },
    "FlashInfer has no such function",
)
globals().update(_offered)
