"""Sequence lengths of a batch, replaced with all that follows from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch


def with_lengths(metadata: Any, seq_lens: torch.Tensor) -> Any:
    """Return the metadata with other sequence lengths (R,), computed tokens and bound fitted."""
    computed = seq_lens.cpu() - metadata.query_start_loc_cpu.diff()
    return replace(
        metadata,
        seq_lens=seq_lens.to(metadata.seq_lens),
        seq_lens_cpu=seq_lens.to(metadata.seq_lens_cpu),
        num_computed_tokens_cpu=computed.to(metadata.num_computed_tokens_cpu),
        max_seq_len=max(seq_lens.tolist(), default=0),
    )
