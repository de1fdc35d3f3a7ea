"""K25 in this backend: a view is cut at the number of rows where tokens are counted.

Where each row before the boundary has one token the two agree, and so did the test.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug

BUG = Bug("K25", "XFormersAttentionMetadata", "9026", ("cut with the wrong length",))


class XFormersAttentionMetadata(reference.XFormersAttentionMetadata):
    """Takes rows for tokens when it cuts the prefills' slots."""

    @property
    def prefill_metadata(self) -> Any:
        """The view, its slots from the first prefill's row on."""
        view = super().prefill_metadata
        if view is None or view.slot_mapping.shape[0] != self.num_prefill_tokens:
            return view
        slots = self.slot_mapping[self.num_decodes : self.num_actual_tokens]
        if slots.shape[0] != self.num_prefill_tokens:
            self._prefills = replace(view, slot_mapping=slots)
        return self._prefills
