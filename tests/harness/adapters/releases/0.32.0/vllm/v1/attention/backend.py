"""Batches of a release that keeps bounds on the host, and derives computed tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class CommonAttentionMetadata:
    query_start_loc: Any
    query_start_loc_cpu: Any
    seq_lens: Any
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: Any
    slot_mapping: Any
    causal: bool = True
    logits_indices_padded: Any = None
    num_logits_indices: int | None = None
    max_logits_per_req: int | None = None
    encoder_seq_lens: Any = None
    encoder_seq_lens_cpu: Any = None
    seq_lens_cpu_upper_bound: Any = None
    is_prefilling: Any = None
    unknown_to_us: str = "left alone"

    def compute_num_computed_tokens(self):
        return (self.seq_lens - self.query_start_loc.diff()).int()


class AttentionMetadataBuilder:
    def _init_reorder_batch_threshold(self, reorder_batch_threshold=1):
        self.reorder_batch_threshold = reorder_batch_threshold
