"""K13: rows that pad a batch keep the lengths of the requests that had them before."""

from __future__ import annotations

from typing import Any

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug
from attnproof.reference.shared import CommonAttentionMetadata

BUG = Bug(
    "K13",
    "batch_sequence",
    "vllm-project/vllm#41841",
    ("padded row keeps an earlier request's state",),
)


class PersistentBatch(reference.PersistentBatch):
    """Writes the rows of the requests and shows more of them."""

    def build(self, *args: Any, **kwargs: Any) -> CommonAttentionMetadata:
        """Sequence lengths behind the last request are those of earlier steps."""
        earlier = self._seq_lens_cpu.clone()
        made = super().build(*args, **kwargs)
        num_reqs = self.num_reqs
        made.seq_lens_cpu[num_reqs:] = earlier[num_reqs : made.num_reqs]
        made.seq_lens.copy_(made.seq_lens_cpu)
        return made
