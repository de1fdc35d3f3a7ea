"""Conversion of batches to the classes of the installed vLLM."""

from __future__ import annotations

from typing import Any

from attnproof.harness.adapters.vllm.installed import find
from attnproof.harness.interfaces.conversion import Conversion
from attnproof.harness.running.engines import BATCH_PLACES

UTILS = "v1.attention.backends.utils"
_SLICE_PLACES = (("v1.worker.ubatch_utils", "UBatchSlice"), (UTILS, "UbatchSlice"))


def _metadata_class() -> Any:
    return find(BATCH_PLACES, "CommonAttentionMetadata")


def _slice_class() -> Any:
    """Return vLLM's class of a micro-batch, whose name depends on the version."""
    classes = (find([place], name) for place, name in _SLICE_PLACES)
    return next((cls for cls in classes if cls is not None), None)


CONVERSION = Conversion(_metadata_class, _slice_class)
theirs, ours = CONVERSION.theirs, CONVERSION.ours
