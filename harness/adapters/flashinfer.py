"""The installed FlashInfer as a candidate: `attnproof verify --candidate flashinfer`.

Its one operation is a Triton kernel behind a function of torch, so that it is offered in the
lane interpreter. NOT_OFFERED gives a reason for every other operation. Importing the module
raises ImportError with one line if FlashInfer is missing.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from attnproof.harness.adapters.single_engines import (
    Launch,
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


_offered, NOT_OFFERED = divided(
    {_NAME: _positions} if interprets() else {},
    {
        _NAME: "FlashInfer has it as a Triton kernel only: verify it with --device interpreter",
        "compute_flashinfer_kv_metadata": "FlashInfer's callers compute it: the candidates vllm "
        "and sglang",
    },
    "FlashInfer has no such function",
)
globals().update(_offered)
