"""Mistakes in the rows that a persistent batch keeps between steps (SPEC.md section 7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnproof.harness.strength.mutation import mutation

_SEQUENCE, _PART = "batch_sequence", "PersistentBatch"


@mutation(
    _SEQUENCE,
    "K17",
    source="vllm-project/vllm#39444",
    part=_PART,
    diagnoses=("a valid slot where none is due",),
    one=("sequences",),
    both=("consumer",),
    examples=90,
)
def slot_zero(batch: Any) -> Any:
    """The slot buffer starts at 0, a valid slot, and a dummy run does not reset it."""

    class PersistentBatch(batch):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.slot_mapping.zero_()

        def build_dummy(self, num_reqs: int, num_tokens: int) -> Any:
            slots = self.slot_mapping.clone()
            metadata = super().build_dummy(num_reqs, num_tokens)
            self.slot_mapping.copy_(slots)
            return metadata

    return PersistentBatch


@mutation(
    _SEQUENCE,
    part=_PART,
    diagnoses=("sees keys of its own future",),
    one=("sequences",),
    both=("consumer",),
    examined="",
    boundary="append, then each kind of step",
    steps=120,
)
def blocks_of_the_last_append_only(batch: Any) -> Any:
    """After two appends to a row the next batch gets only the blocks of the second one."""

    class PersistentBatch(batch):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.sent: dict[int, tuple[Any, int, Any]] = {}
            self.first: dict[Any, int] = {}

        def append_blocks(self, req_id: Any, block_ids: Sequence[int]) -> None:
            super().append_blocks(req_id, block_ids)
            held = int(self.num_blocks[self.req_ids.index(req_id)])
            self.first[req_id] = held - len(block_ids)

        def build(self, *args: Any, **kwargs: Any) -> Any:
            metadata = super().build(*args, **kwargs)
            table = metadata.block_table_tensor
            for row, req_id in enumerate(self.req_ids):
                before, held, blocks = self.sent.get(row, (None, 0, None))
                if before == req_id and self.first.get(req_id, 0) > held:
                    lost = slice(held, self.first[req_id])
                    table[row, lost] = blocks[lost]
                self.sent[row] = req_id, int(self.num_blocks[row]), table[row].clone()
            self.first.clear()
            return metadata

    return PersistentBatch
