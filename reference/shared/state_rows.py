"""Rows of a batch, as builders of state-space metadata read them (SPEC.md section 17)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Annotated, Any, Final

import torch

from ..checks.common import check_int, check_prefilling
from ..definition.roles import Array, Metadata, Object
from ..interface.errors import MetadataError
from ..interface.state_space import StateSpaceConfig
from .metadata import CommonAttentionMetadata

__all__: list[str] = []

NULL: Final = 0
"""Block that no request has."""
BatchMetadata = Annotated[CommonAttentionMetadata, Metadata(sequences=True)]
Config = Annotated[StateSpaceConfig, Object()]
Accepted = Annotated[torch.Tensor, Array(shape=("R",), dtype=torch.int32, least=1)]
Drafts = Annotated[torch.Tensor, Array(shape=("R",), dtype=torch.int32, least=-1, on_cpu=True)]


def is_ready(
    operation: str, common_attn_metadata: CommonAttentionMetadata, config: StateSpaceConfig
) -> None:
    """Require the flags of rows in their prompt, and sizes in range."""
    check_prefilling(operation, common_attn_metadata)
    check_int(operation, "block_size", config.block_size, 1)
    check_int(operation, "num_speculative_tokens", config.num_speculative_tokens, 0)
    check_int(operation, "chunk_size", config.chunk_size, 1)
    check_int(operation, "max_num_seqs", config.max_num_seqs, 1)
    if config.mamba_cache_mode not in ("none", "align"):
        mode = repr(config.mamba_cache_mode)
        raise MetadataError(operation, "mamba_cache_mode", mode, "none or align")


class BatchRows:
    """Rows of a batch as lists."""

    def __init__(self, md: CommonAttentionMetadata, config: StateSpaceConfig) -> None:
        queries = md.query_start_loc.diff()
        self.queries: list[int] = queries.tolist()
        """Query tokens."""
        self.computed: list[int] = (md.seq_lens - queries).tolist()
        """Computed tokens."""
        self.prefilling: list[bool] = md.is_prefilling.tolist()  # type: ignore[attr-defined]
        """True of a row in its prompt."""
        self.num_actual_tokens = md.num_actual_tokens
        self.states: list[list[int]] = []
        """Blocks of the states: that of the last token, and those of the drafts."""
        self.width = 1 + config.num_speculative_tokens
        for row, length in zip(md.block_table_tensor.tolist(), md.seq_lens.tolist(), strict=True):
            aligned = config.mamba_cache_mode == "align"
            first = max(0, length - 1) // config.block_size if aligned else 0
            self.states.append(row[first : first + self.width])
        self._device = md.query_start_loc.device

    def first_chunks(self) -> list[bool]:
        """Return which rows begin a prompt: the state in their block is another request's."""
        rows = zip(self.prefilling, self.queries, self.computed, strict=True)
        return [flag and q > 0 and c <= 0 for flag, q, c in rows]

    def prompts(self, drafts: Sequence[int]) -> list[bool]:
        """Return which rows only a prefill computes.

        With a state the update of a decode computes a row of one token too, and one whose other
        tokens are drafts.
        """
        rows = zip(self.prefilling, self.queries, self.computed, drafts, strict=True)
        return [
            flag and not (c > 0 and (q == 1 or (draft >= 0 and q == draft + 1)))
            for flag, q, c, draft in rows
        ]

    def split(self, prefilling: Sequence[bool], threshold: int) -> dict[str, Any]:
        """Return the leading rows that are decodes, all others, and their tokens."""
        count, rows = 0, len(self.queries)
        while count < rows and self.queries[count] <= threshold and not prefilling[count]:
            count += 1
        # Padding follows decodes only.
        tokens = self.num_actual_tokens if count == rows else sum(self.queries[:count])
        return {
            "num_decodes": count,
            "num_decode_tokens": tokens,
            "num_prefills": rows - count,
            "num_prefill_tokens": self.num_actual_tokens - tokens,
        }

    def tokens(self, rows: Iterable[int]) -> list[int]:
        """Return the tokens of rows, by their index in the batch."""
        starts = offsets(self.queries)
        return [token for row in rows for token in range(starts[row], starts[row + 1])]

    def new(self, values: list[Any], dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """Return a tensor of values beside the batch."""
        return torch.tensor(values, dtype=dtype, device=self._device)


def listed(values: torch.Tensor | None, default: list[int]) -> list[int]:
    """Return the values of a tensor, or the default without one."""
    return default if values is None else values.tolist()


def offsets(counts: Iterable[int]) -> list[int]:
    """Return the running sums from 0 on."""
    return [0, *accumulate(counts)]
