"""The batch as attention backends see it, and its graph padding (SPEC.md section 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from ..interface.metadata import BatchFields


@dataclass
class CommonAttentionMetadata(BatchFields):
    """Integer metadata of one batch of R requests, T tokens, W block-table columns.

    A padded batch has trailing rows with no query and no sequence, and trailing tokens with
    slot -1. `validate` checks the invariants. A subclass may add fields: `aligned` says
    which of them go with the requests and the tokens. SPEC.md section 1.
    """

    def padded(self, num_tokens: int, num_reqs: int) -> Self:
        """The batch with graph padding up to `num_tokens` tokens and `num_reqs` rows.

        Of the same class. What is added: rows without query or sequence, whose block
        table is 0 (the null block), and tokens with slot -1; every aligned field grows
        by the value that it declares. What need not grow is a view of this batch's.
        MetadataError for fewer rows or tokens than there are and for malformed
        metadata. No synchronisation. SPEC.md section 1.
        """
        from ..shared.padding import pad

        return pad(self, num_tokens, num_reqs)

    def unpadded(self, num_actual_tokens: int, num_actual_reqs: int) -> Self:
        """The first `num_actual_reqs` rows and `num_actual_tokens` tokens, without padding.

        Of the same class; every aligned field is a view of this batch's, all else is
        kept. MetadataError for more rows or tokens than there are, for a row or token
        that is no padding (by the CPU mirrors), and for malformed metadata. No
        synchronisation. SPEC.md section 1.
        """
        from ..shared.padding import unpad

        return unpad(self, num_actual_tokens, num_actual_reqs)
