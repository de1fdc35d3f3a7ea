"""Replacement of a batch's sequence lengths and of the fields that depend on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch


def with_lengths(metadata: Any, seq_lens: torch.Tensor) -> Any:
    """Return the metadata with these sequence lengths (R,) and matching dependent fields."""
    bound = getattr(metadata, "seq_lens_cpu_upper_bound", None)
    later = {} if bound is None else {"seq_lens_cpu_upper_bound": seq_lens.to(bound)}
    computed = seq_lens.cpu() - metadata.query_start_loc_cpu.diff()
    return replace(
        metadata,
        seq_lens=seq_lens.to(metadata.seq_lens),
        seq_lens_cpu=seq_lens.to(metadata.seq_lens_cpu),
        num_computed_tokens_cpu=computed.to(metadata.num_computed_tokens_cpu),
        max_seq_len=max(seq_lens.tolist(), default=0),
        **later,
    )
