"""K17: the slot buffer starts at 0, a valid slot, and a dummy run leaves it as it is."""

from __future__ import annotations

from typing import Any

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug
from attnproof.reference.shared import CommonAttentionMetadata

BUG = Bug(
    "K17",
    "batch_sequence",
    "vllm-project/vllm#39444",
    ("a valid slot where none is due",),
)


class PersistentBatch(reference.PersistentBatch):
    """Forgets that 0 is the first slot of block 0."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.slot_mapping.zero_()

    def build_dummy(self, num_reqs: int, num_tokens: int) -> CommonAttentionMetadata:
        """Slots are those of the last step."""
        slots = self.slot_mapping.clone()
        made = super().build_dummy(num_reqs, num_tokens)
        self.slot_mapping.copy_(slots)
        return made
