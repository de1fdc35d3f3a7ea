"""The batch of vLLM 0.32, for candidates of its interface where vLLM is not installed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from typing_extensions import Self


@dataclass
class CommonAttentionMetadata:
    """A batch with the fields and methods of vLLM 0.32 (SPEC.md section 9).

    Its lengths are on the device only; the computed tokens follow from them.
    """

    query_start_loc: torch.Tensor
    query_start_loc_cpu: torch.Tensor
    seq_lens: torch.Tensor
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: torch.Tensor
    slot_mapping: torch.Tensor
    causal: bool | torch.Tensor = True
    logits_indices_padded: torch.Tensor | None = None
    num_logits_indices: int | None = None
    max_logits_per_req: int | None = None
    encoder_seq_lens: torch.Tensor | None = None
    encoder_seq_lens_cpu: np.ndarray | None = None
    dcp_local_seq_lens: torch.Tensor | None = None
    dcp_local_seq_lens_cpu_upper_bound: torch.Tensor | None = None
    positions: torch.Tensor | None = None
    is_prefilling: torch.Tensor | None = None
    seq_lens_cpu_upper_bound: torch.Tensor | None = None
    req_idx: np.ndarray | None = None
    mm_req_doc_ranges: dict[int, list[tuple[int, int]]] | None = None
    rswa_prefix_lens: torch.Tensor | None = None
    replayssm_decode_base_cpu: torch.Tensor | None = None

    def batch_size(self) -> int:
        """Return the number of rows."""
        return int(self.seq_lens.shape[0])

    def naive_query_lens(self) -> torch.Tensor:
        """Return the query tokens of each row, (R,)."""
        return self.query_start_loc.diff()

    def replace(self, **changes: Any) -> Self:
        """Return the batch with other values of some fields."""
        return replace(self, **changes)

    def compute_num_computed_tokens(self) -> torch.Tensor:
        """Return the computed tokens of each row, (R,), on the device."""
        return self.seq_lens - self.naive_query_lens()

    def token_to_req_indices(self, buffer: torch.Tensor) -> torch.Tensor:
        """Write the row of each token into the int32 buffer; return that part of it.

        Tokens of graph padding get the last row.
        """
        rows = torch.arange(self.num_reqs, dtype=torch.int32, device=buffer.device)
        owners = torch.repeat_interleave(rows, self.naive_query_lens().to(buffer.device))
        out = buffer[: self.num_actual_tokens]
        out.fill_(max(0, self.num_reqs - 1))
        out[: len(owners)] = owners
        return out

    def unpadded(self, num_actual_tokens: int, num_actual_reqs: int) -> Self:
        """Return the first tokens and rows: the rest is graph padding."""
        changes: dict[str, Any] = {"num_reqs": num_actual_reqs}
        changes |= {"num_actual_tokens": num_actual_tokens}
        for name in ("query_start_loc", "query_start_loc_cpu"):
            changes[name] = getattr(self, name)[: num_actual_reqs + 1]
        for name in ("slot_mapping", "positions"):
            value = getattr(self, name)
            changes[name] = None if value is None else value[:num_actual_tokens]
        for name in _OF_REQUESTS:
            value = getattr(self, name)
            changes[name] = None if value is None else value[:num_actual_reqs]
        if isinstance(self.causal, torch.Tensor):
            changes["causal"] = self.causal[:num_actual_reqs]
        return replace(self, **changes)


_OF_REQUESTS = (
    "seq_lens",
    "block_table_tensor",
    "encoder_seq_lens",
    "encoder_seq_lens_cpu",
    "dcp_local_seq_lens",
    "dcp_local_seq_lens_cpu_upper_bound",
    "is_prefilling",
    "seq_lens_cpu_upper_bound",
    "req_idx",
    "rswa_prefix_lens",
    "replayssm_decode_base_cpu",
)
