"""Mistakes in the rows that a persistent batch keeps between steps (SPEC.md section 7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from attnproof.harness.strength.mutation import mutation

_SEQUENCE, _PART = "batch_sequence", "PersistentBatch"


@mutation(
    _SEQUENCE,
    "K12",
    source="vllm-project/vllm#48419",
    part=_PART,
    diagnoses=("both rows hold the same request",),
    one=("sequences",),
    both=("consumer",),
    boundary="swapped rows (K12)",
)
def rows_as_views(batch: Any) -> Any:
    """Two rows are swapped as views, so that the second copy reads what the first one wrote."""

    class PersistentBatch(batch):
        def swap_states(self, i: int, j: int) -> None:
            states = (self.block_table, self.num_blocks[:, None], self.num_computed_tokens[:, None])
            before = [state.clone() for state in states]
            super().swap_states(i, j)
            for state, rows in zip(states, before, strict=True):
                state.copy_(rows)
                state[i], state[j] = state[j], state[i]

    return PersistentBatch


@mutation(
    _SEQUENCE,
    "K13",
    source="vllm-project/vllm#41841",
    part=_PART,
    diagnoses=("padded row keeps an earlier request's state",),
    one=("sequences",),
)
def padded_rows(batch: Any) -> Any:
    """Rows that pad a batch keep the lengths of the requests that used them before."""

    class PersistentBatch(batch):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.earlier = torch.zeros(self.max_num_reqs, dtype=torch.int32)

        def build(self, *args: Any, **kwargs: Any) -> Any:
            made = super().build(*args, **kwargs)
            made.seq_lens_cpu[self.num_reqs :] = self.earlier[self.num_reqs : made.num_reqs]
            made.seq_lens.copy_(made.seq_lens_cpu)
            return self._remembered(made)

        def build_dummy(self, *args: Any, **kwargs: Any) -> Any:
            return self._remembered(super().build_dummy(*args, **kwargs))

        def _remembered(self, made: Any) -> Any:
            self.earlier[: made.num_reqs] = made.seq_lens_cpu
            return made

    return PersistentBatch


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
            made = super().build_dummy(num_reqs, num_tokens)
            self.slot_mapping.copy_(slots)
            return made

    return PersistentBatch


@mutation(
    _SEQUENCE,
    "K18",
    source="vllm-project/vllm#39589, vllm-project/vllm#42494",
    part=_PART,
    diagnoses=("stale block of an earlier request", "another request's block"),
    one=("sequences",),
)
def reused_row(batch: Any) -> Any:
    """A request in a longer row also counts the blocks of the request before it."""

    class PersistentBatch(batch):
        def add_request(
            self, req_id: Any, block_ids: Sequence[int], num_computed_tokens: int = 0
        ) -> int:
            earlier = self.num_blocks.clone()
            row: int = super().add_request(req_id, block_ids, num_computed_tokens)
            self.num_blocks[row] = max(int(earlier[row]), len(block_ids))
            return row

    return PersistentBatch


@mutation(
    _SEQUENCE,
    part=_PART,
    diagnoses=("sees another request's block",),
    both=("consumer",),
    examined=None,
    boundary="swapped rows (K12)",
    one=("sequences",),
    steps=7,
)
def blocks_of_swapped_rows_stay(batch: Any) -> Any:
    """Rows that are swapped leave their blocks where they were."""

    class PersistentBatch(batch):
        def swap_states(self, i: int, j: int) -> None:
            super().swap_states(i, j)
            held = int(self.num_blocks[[i, j]].max())
            self.block_table[[i, j], :held] = self.block_table[[j, i], :held]

    return PersistentBatch


@mutation(
    _SEQUENCE,
    part=_PART,
    diagnoses=("sees keys of its own future",),
    one=("sequences",),
    both=("consumer",),
    examined=None,
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
            made = super().build(*args, **kwargs)
            table = made.block_table_tensor
            for row, req_id in enumerate(self.req_ids):
                before, held, blocks = self.sent.get(row, (None, 0, None))
                if before == req_id and self.first.get(req_id, 0) > held:
                    lost = slice(held, self.first[req_id])
                    table[row, lost] = blocks[lost]
                self.sent[row] = req_id, int(self.num_blocks[row]), table[row].clone()
            self.first.clear()
            return made

    return PersistentBatch
