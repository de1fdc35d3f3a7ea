"""Metadata of a batch for attention backends, and its graph padding (SPEC.md section 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

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
