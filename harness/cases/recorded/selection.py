"""Selection of recorded batches by structure, rare structures first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnproof.harness.cases.steps.selection import StepReservoir
from attnproof.harness.cases.steps.signature import ATTENTION_CHUNK
from attnproof.harness.model.case import Batch, EngineStep


@dataclass(frozen=True)
class RecordedBatch:
    """One batch of a recording, in the form that a reservoir takes."""

    index: int
    taken: Batch
    source: str

    @property
    def num_blocks(self) -> int:
        """Number of live blocks."""
        return sum(map(len, self.taken.blocks))

    @property
    def num_tokens(self) -> int:
        """Number of query tokens."""
        return self.taken.num_tokens

    def batch(self) -> Batch:
        """Return the batch."""
        return self.taken


Mark = tuple[int, ...]


def mark_of(batch: Batch) -> Mark:
    """Return the discrete features that distinguish the structure of a batch."""
    query_lens = np.array(batch.query_lens, dtype=np.int64)
    computed = np.array(batch.computed_lens, dtype=np.int64)
    seq_lens, size = query_lens + computed, batch.block_size
    if not len(query_lens):
        return (0,) * 16
    decodes, longer = query_lens == 1, query_lens > 1
    after = decodes[int(np.argmax(longer)) :].any() if longer.any() else False
    prompts = np.array(batch.prompt_lens or computed, dtype=np.int64)
    extends = (computed > 0) & (computed < prompts)
    edges = (seq_lens - 1) // ATTENTION_CHUNK - computed // ATTENTION_CHUNK
    null = any(0 in blocks for blocks in batch.blocks)
    return (
        int(decodes.sum()).bit_length(),
        min(int(longer.sum()), 3),
        int(after),
        int((longer & (computed > 0)).any()),
        int((computed < prompts).any()) + int((extends & decodes).any()),
        int((query_lens == 0).any()),
        int(batch.padded_requests > 0) + 2 * int(batch.padded_tokens > 0),
        int((computed % size == 0).any()) + int((computed % size == 0).all()),
        int((seq_lens % size == 0).any()) + int((seq_lens % size == 0).all()),
        min(int(edges.max()), 2),
        int(seq_lens.max()).bit_length(),
        int(null),
        int(batch.no_slots),
        int(batch.bound_slack > 0),
        0 if batch.logits_indices is None else 1 + (len(batch.logits_indices) != len(query_lens)),
        int(batch.causal),
    )


class RecordedReservoir:
    """Bounded sample of the batches of recordings, spread over their structures."""

    def __init__(self, count: int, seed: int) -> None:
        self._reservoir = StepReservoir(count, seed)
        self._count = count
        self._sources: dict[int, str] = {}
        self.offered = 0
        """Batches seen so far."""

    def offer(self, batch: Batch, source: str) -> None:
        """Add a batch to the sample, or skip it."""
        self._sources[self.offered] = source
        self._reservoir.offer(RecordedBatch(self.offered, batch, source), mark_of(batch))
        self.offered += 1

    def choose(self) -> list[EngineStep]:
        """Return the chosen batches, the rarest structure first."""
        chosen = self._reservoir.choose(self._count) if self._count else []
        return [EngineStep(batch, self._sources[index], "recorded") for index, batch in chosen]
