"""`build_slot_mapping` for vLLM, which lacks it: the work of its engines for a whole batch.

First generation (V0, 0.10): `compute_slot_mapping` for each request into one list, then
the tensor that the V0 builder makes of it. Second (V1, 0.10 and 0.11): numpy over the
engine's block table, `BlockTable.compute_slot_mapping` and `commit_slot_mapping`.

Data that an engine already holds is prepared and not timed: for V0 each request's lengths
and block ids as Python objects; for V1 the filled block table, and each token's request and
position. An engine computes these two anew in each engine step, so the V1 time is a lower
bound of vLLM's.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import numpy as np
import torch

from attnproof.harness.model.call import Thunk

_PAD = -1


def _length(tokens: int, num_padded_tokens: int | None, out: torch.Tensor | None) -> int:
    """Return the length of the result: `num_padded_tokens`, that of the buffer, or `tokens`."""
    if num_padded_tokens is not None:
        return num_padded_tokens
    return tokens if out is None else len(out)


class V0Slots:
    """The list form of V0, applied to a batch."""

    __name__ = "build_slot_mapping"

    def __init__(self, compute_slot_mapping: Callable[..., None]) -> None:
        self._compute = compute_slot_mapping

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the slot of every token, int64."""
        result: torch.Tensor = self.bind(*args, **kwargs)()
        return result

    def bind(
        self,
        query_start_loc: torch.Tensor,
        num_computed_tokens: torch.Tensor,
        block_table: torch.Tensor,
        block_size: int,
        *,
        num_padded_tokens: int | None = None,
        start_idx: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> Thunk:
        """Return an engine step of the V0 builder, which pads with -1 after the last token."""
        compute, device = self._compute, query_start_loc.device
        offsets, computed = query_start_loc.tolist(), num_computed_tokens.tolist()
        first = [0] * len(computed) if start_idx is None else start_idx.tolist()
        tables = dict(enumerate(block_table.tolist()))
        rows = [
            (row, end := c + offsets[row + 1] - offsets[row], c, min(first[row], end))
            for row, c in enumerate(computed)
        ]
        length = _length(offsets[-1], num_padded_tokens, out)

        def step() -> torch.Tensor:
            slots: list[int] = []
            for row, seq_len, context_len, start in rows:
                compute(False, slots, row, seq_len, context_len, start, block_size, tables)
            slots.extend([_PAD] * ((length if out is None else len(out)) - len(slots)))
            tensor = torch.tensor(slots, dtype=torch.long).to(device, non_blocking=True)
            return tensor if out is None else out.copy_(tensor)[:length]

        return step


class V1Slots:
    """The numpy form of V1, on an engine's block table."""

    __name__ = "build_slot_mapping"

    def __init__(self, block_table_class: type[Any]) -> None:
        self._class = block_table_class

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the slot of every token, int64."""
        result: torch.Tensor = self.bind(*args, **kwargs)()
        return result

    def bind(
        self,
        query_start_loc: torch.Tensor,
        num_computed_tokens: torch.Tensor,
        block_table: torch.Tensor,
        block_size: int,
        *,
        num_padded_tokens: int | None = None,
        start_idx: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> Thunk:
        """Return an engine step of V1, which fills the rest of its buffer with -1."""
        offsets, computed = query_start_loc.cpu().numpy(), num_computed_tokens.cpu().numpy()
        requests = np.repeat(np.arange(len(computed)), np.diff(offsets))
        positions = computed[requests] + np.arange(offsets[-1]) - offsets[requests]
        tokens = len(requests)
        length = _length(tokens, num_padded_tokens, out)
        size = max(length, tokens, 0 if out is None else len(out), 1)
        table = self._filled(block_table, block_size, size, query_start_loc.device)
        masked = None if start_idx is None else positions < start_idx.cpu().numpy()[requests]

        def step() -> torch.Tensor:
            table.compute_slot_mapping(requests, positions)
            table.commit_slot_mapping(tokens)
            slots: torch.Tensor = getattr(table.slot_mapping, "gpu", table.slot_mapping)
            if size > tokens:
                slots[tokens:].fill_(_PAD)
            if masked is not None:
                slots[:tokens][torch.from_numpy(masked)] = _PAD
            return slots[:length] if out is None else out.copy_(slots[: len(out)])[:length]

        return step

    def _filled(self, block_table: torch.Tensor, block_size: int, size: int, device: Any) -> Any:
        """Return vLLM's block table filled with our rows."""
        rows, columns = block_table.shape
        options = {
            "kernel_block_size": block_size,
            "dcp_kv_cache_interleave_size": 1,
            "cp_kv_cache_interleave_size": 1,
        }
        known = signature(self._class).parameters
        table = self._class(
            block_size=block_size,
            max_num_reqs=max(rows, 1),
            max_num_blocks_per_req=max(columns, 1),
            max_num_batched_tokens=size,
            pin_memory=False,
            device=device,
            **{name: value for name, value in options.items() if name in known},
        )
        table.get_numpy_array()[:rows, :columns] = block_table.cpu().numpy()
        return table
