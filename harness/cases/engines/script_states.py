"""Steps of an engine with state-space layers for sequences that are shown as programs."""

from __future__ import annotations

from typing import Any

import torch

from attnproof.reference import CommonAttentionMetadataV32, StateSpaceConfig

ROWS, COLUMNS, BLOCK_SIZE = 4, 8, 2
"""Rows of a batch and columns of a table, at most, and tokens per block."""
_TABLES = 2


class StateRunner:
    """Memory of a batch, which each step fills again, as graphs need it."""

    def __init__(self, config: StateSpaceConfig, builder: type[Any]) -> None:
        self.config = config
        self.width = 1 + config.num_speculative_tokens
        self.builders = [builder(config) for _ in range(_TABLES)]
        self.built: list[Any] = []
        """Results of the last step: of the first group, and of the second where it has one."""
        self.graphs: dict[int, list[Any]] = {}
        """Results at the capture, by the graph's rows."""
        self.replayed = 0
        """Rows of the graph that the last step replays, 0 without."""
        self._offsets = torch.zeros(ROWS + 1, dtype=torch.int32)
        self._lengths = torch.zeros(ROWS, dtype=torch.int32)
        self._prefilling = torch.zeros(ROWS, dtype=torch.bool)
        self._tables = torch.zeros((_TABLES, ROWS, COLUMNS), dtype=torch.int32)
        self._slots = torch.zeros(ROWS * COLUMNS * BLOCK_SIZE, dtype=torch.int64)
        self._accepted = torch.ones(ROWS, dtype=torch.int32)
        self._drafts = torch.full((ROWS,), -1, dtype=torch.int32)
        self._steps = 0

    def capture(self, rows: int) -> None:
        """Capture a graph of rows that have all drafts, and no blocks."""
        batch = self._fill([(self.width, 0, False)] * rows, rows)
        self._tables.zero_()
        captured = self.builders[0].build_for_cudagraph_capture(batch)
        self.built = self.graphs[rows] = [captured, *self._updated(captured, rows)]
        self.replayed = 0

    def step(self, rows: list[tuple[int, int, bool]], graph: int = 0) -> None:
        """Build for rows, (query, computed, in its prompt); in a graph of as many rows or more."""
        padded = graph or len(rows)
        batch = self._fill(rows, padded)
        counts: tuple[torch.Tensor, ...] = ()
        if self.config.num_speculative_tokens:
            counts = (self._accepted[:padded], self._drafts[:padded])
        built = self.builders[0].build(batch, *counts)
        self.built = [built, *self._updated(built, padded)]
        self.replayed = graph

    def _updated(self, built: Any, rows: int) -> list[Any]:
        """Return the second group's result, where the engine does not build it anew."""
        layer, drafts = self.config.layer, self.width > 1
        if layer in ("kda", "ple_short_conv", "linear", "bailing") or (drafts and layer != "gdn"):
            return []
        return [self.builders[1].update_block_table(built, self._tables[1, :rows], self._slots)]

    def _fill(self, rows: list[tuple[int, int, bool]], padded: int) -> CommonAttentionMetadataV32:
        self._steps += 1
        rows = rows + [(0, 0, False)] * (padded - len(rows))
        queries = torch.tensor([q for q, _, _ in rows], dtype=torch.int32)
        computed = torch.tensor([c for _, c, _ in rows], dtype=torch.int32)
        self._offsets[1 : padded + 1] = queries.cumsum(0)
        self._lengths[:padded] = queries + computed
        self._prefilling[:padded] = torch.tensor([flag for _, _, flag in rows])
        # No two steps, groups and rows share a block; padding has none.
        ids = torch.arange(1, 1 + self._tables.numel(), dtype=torch.int32)
        self._tables[:] = (ids + self._steps * self._tables.numel()).view_as(self._tables)
        self._tables[:, :padded] *= (queries > 0)[:, None]
        real = queries > 0
        speculative = real & (queries == self.width) & (computed > 0)
        self._accepted[:padded] = torch.where(speculative, 1 + self._steps % self.width, 1)
        self._drafts[:padded] = torch.where(speculative, queries - 1, -1)
        tokens = int(self._offsets[padded])
        return CommonAttentionMetadataV32(
            query_start_loc=self._offsets[: padded + 1],
            query_start_loc_cpu=self._offsets[: padded + 1],
            seq_lens=self._lengths[:padded],
            seq_lens_cpu=self._lengths[:padded].clone(),
            num_computed_tokens_cpu=computed,
            num_reqs=padded,
            num_actual_tokens=tokens,
            max_query_len=int(queries.max()),
            max_seq_len=int(self._lengths[:padded].max()),
            block_table_tensor=self._tables[0, :padded],
            slot_mapping=self._slots[:tokens],
            is_prefilling=self._prefilling[:padded],
        )


def state_config(layer: Any, drafts: int, mode: Any) -> StateSpaceConfig:
    """Return the configuration of an engine with full graphs."""
    return StateSpaceConfig(
        layer=layer,
        block_size=BLOCK_SIZE,
        mamba_cache_mode=mode,
        num_speculative_tokens=drafts,
        chunk_size=4,
        has_full_graphs=True,
        max_num_seqs=ROWS,
    )
