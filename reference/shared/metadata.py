"""Metadata of a batch for attention backends, and its graph padding (SPEC.md section 1)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from typing_extensions import Self

from ..interface.fields import aligned
from ..interface.metadata import BatchFields


@dataclass
class CommonAttentionMetadata(BatchFields):
    """Integer metadata of one batch of R requests, T tokens, W block-table columns.

    A padded batch has trailing rows with no query and no sequence, and trailing tokens with
    slot -1. `validate` checks the invariants. A subclass may add fields and declares with
    `aligned` those that have an entry a request or a token. SPEC.md section 1.
    """

    def padded(self, num_tokens: int, num_reqs: int) -> Self:
        """Return the batch with graph padding up to `num_tokens` tokens and `num_reqs` rows.

        The class is kept. Added rows have no query and no sequence, and block table 0 (the
        null block); added tokens have slot -1; every aligned field grows by the value that
        it declares. Fields that do not grow are views of this batch's fields. Raise
        MetadataError for fewer rows or tokens than there are and for malformed metadata.
        No synchronisation. SPEC.md section 1.
        """
        from ..shared.padding import pad

        return pad(self, num_tokens, num_reqs)

    def unpadded(self, num_actual_tokens: int, num_actual_reqs: int) -> Self:
        """Return the first `num_actual_reqs` rows and `num_actual_tokens` tokens.

        The rest must be padding. The class is kept; every aligned field is a view of this
        batch's field, all other fields are kept. Raise MetadataError for more rows or
        tokens than there are, for removing a row or token that is not padding (by the CPU
        mirrors), and for malformed metadata. No synchronisation. SPEC.md section 1.
        """
        from ..shared.padding import unpad

        return unpad(self, num_actual_tokens, num_actual_reqs)


@dataclass
class CommonAttentionMetadataV32(CommonAttentionMetadata):
    """Batch with the optional fields of vLLM 0.32, all None unless said (SPEC.md section 9)."""

    positions: torch.Tensor | None = field(default=None, metadata=aligned("token", updated=True))
    """(T,) int64 position of each token in its sequence, on the batch's device."""
    is_prefilling: torch.Tensor | None = field(default=None, metadata=aligned("request"))
    """(R,) bool on the CPU: computed tokens are fewer than the prompt's."""
    seq_lens_cpu_upper_bound: torch.Tensor | None = field(
        default=None, metadata=aligned("request", updated=True)
    )
    """(R,) on the CPU, at least `seq_lens`: larger for decodes whose drafts may be rejected."""
    dcp_local_seq_lens_cpu_upper_bound: torch.Tensor | None = field(
        default=None, metadata=aligned("request", updated=True)
    )
    """(R,) on the CPU, at least `dcp_local_seq_lens`."""
    req_idx: np.ndarray | None = field(default=None, metadata=aligned("request"))
    """(R,) row of each request in the engine's table of requests."""
    mm_req_doc_ranges: dict[int, list[tuple[int, int]]] | None = field(
        default=None, metadata=aligned("row keys")
    )
    """Inclusive (start, end) prompt positions that see each other, by row of the batch."""
    rswa_prefix_lens: torch.Tensor | None = field(default=None, metadata=aligned("request"))
    """(R,) tokens that stay visible outside the sliding window, on the batch's device."""
    replayssm_decode_base_cpu: torch.Tensor | None = field(
        default=None, metadata=aligned("request")
    )
    """(R,) computed tokens at the last write of a whole state, on the CPU."""
    max_logits_per_req: int | None = None
    """Upper bound of the sampled tokens of one request."""
