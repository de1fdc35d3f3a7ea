"""Batches that an engine may make."""

from __future__ import annotations

from typing import Any

import msgspec

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.model.case import Batch

_KEPT = (
    *("padded_requests", "padded_tokens", "spare_columns", "spare_slots", "causal"),
    *("encoder_seq_lens", "dcp_local_seq_lens", "subclassed", "later", "prompt_lens"),
)
"""Fields of a batch that do not depend on its lengths."""


def real_batch(batch: Batch) -> Batch:
    """Return the batch with what no engine makes left out; a row without a token gets one."""
    lengths = [max(1, length) for length in batch.query_lens] or [1]
    computed = list(batch.computed_lens) or [0]
    plain: dict[str, Any] = {"strided": False, "dtype": "int32"}
    if lengths == list(batch.query_lens):
        real = msgspec.structs.replace(batch, **plain)
    else:
        fields = {name: getattr(batch, name) for name in _KEPT}
        real = make_batch(lengths, computed, batch.block_size, **fields, **plain)
    if real.logits_indices is not None:
        sampled = tuple(index for index in real.logits_indices if index < real.num_tokens)
        real = msgspec.structs.replace(real, logits_indices=sampled or None)
    return real
