"""Attributes that are read of objects of a first-generation (V0) engine (SPEC.md appendix A)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch


class PlaceholderMap(Protocol):
    """Places of one modality's items among the tokens; its class takes no arguments."""

    def extend(self, other: Any) -> None:
        """Append another map, without changing that map."""
        ...

    def index_map(self) -> Any:
        """Return the source and destination index of each item."""
        ...


class InterData(Protocol):
    """One sequence group of a batch; the lists have one entry a sequence."""

    @property
    def is_prompt(self) -> bool:
        """True if the tokens are those of a prompt."""
        ...

    @property
    def prefix_cache_hit(self) -> bool:
        """True if the beginning of the prompt is already in the cache."""
        ...

    @property
    def block_tables(self) -> Mapping[int, Sequence[int] | None] | None:
        """Block ids by sequence id; in a profile run None, or None for every sequence."""
        ...

    @property
    def multi_modal_placeholder_maps(self) -> Mapping[str, PlaceholderMap] | None:
        """Placeholder maps of the prompt, by modality."""
        ...

    @property
    def seq_ids(self) -> Sequence[int]:
        """Ids of the sequences."""
        ...

    @property
    def input_tokens(self) -> Sequence[Sequence[int]]:
        """Query tokens of each sequence."""
        ...

    @property
    def orig_seq_lens(self) -> Sequence[int]:
        """Computed plus query tokens of each sequence."""
        ...

    @property
    def seq_lens(self) -> Sequence[int]:
        """Computed plus query tokens of each sequence, cut to the sliding window."""
        ...

    @property
    def query_lens(self) -> Sequence[int]:
        """Number of query tokens of each sequence."""
        ...

    @property
    def context_lens(self) -> Sequence[int]:
        """Computed tokens of each sequence."""
        ...

    @property
    def curr_sliding_window_blocks(self) -> Sequence[int]:
        """Number of last blocks within a decode's window, 0 for all blocks."""
        ...


class AttentionBackendV0(Protocol):
    """Attributes that are read of a runner's backend."""

    def get_name(self) -> str:
        """Return the name of the backend, such as "FLASH_ATTN"."""
        ...

    def make_metadata(self, *args: Any, **kwargs: Any) -> Any:
        """Return an instance of the backend's metadata class."""
        ...


class Runner(Protocol):
    """Attributes that are read of a model runner."""

    @property
    def device(self) -> torch.device | str:
        """Device of the metadata."""
        ...

    @property
    def pin_memory(self) -> bool:
        """True if the host has pinned memory."""
        ...

    @property
    def graph_block_tables(self) -> np.ndarray:
        """(largest batch, most blocks of a sequence) int32 block tables of a graph."""
        ...

    @property
    def max_seq_len_to_capture(self) -> int:
        """Longest sequence of a captured graph, in tokens."""
        ...

    @property
    def attn_backend(self) -> AttentionBackendV0:
        """Backend that makes the metadata of graphs."""
        ...

    def get_max_block_per_batch(self) -> int:
        """Return the largest number of blocks of a sequence."""
        ...


class InputBuilder(Protocol):
    """Attributes that are read of the builder of an engine step's model input."""

    @property
    def runner(self) -> Runner:
        """Runner of the model."""
        ...

    @property
    def sliding_window(self) -> int | None:
        """Sliding window in tokens, None without one."""
        ...

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        ...

    @property
    def inter_data_list(self) -> Sequence[InterData]:
        """Sequence groups of the batch, prompts first."""
        ...

    @property
    def chunked_prefill_enabled(self) -> bool:
        """True if prompts may be computed in chunks."""
        ...
