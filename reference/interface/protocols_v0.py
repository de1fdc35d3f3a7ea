"""What is read of the objects that a first-generation (V0) engine passes (SPEC.md appendix A)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch


class PlaceholderMap(Protocol):
    """Where the items of one modality go among a batch's tokens; its class takes no arguments."""

    def extend(self, other: Any) -> None:
        """Append another map, which is left as it was."""
        ...

    def index_map(self) -> Any:
        """Source and destination index of each item."""
        ...


class InterData(Protocol):
    """One sequence group of a batch; the lists have one entry a sequence."""

    @property
    def is_prompt(self) -> bool:
        """Whether its tokens are a prompt's."""
        ...

    @property
    def prefix_cache_hit(self) -> bool:
        """Whether the head of the prompt is in the cache already."""
        ...

    @property
    def block_tables(self) -> Mapping[int, Sequence[int] | None] | None:
        """Block ids by sequence id, None or None for every sequence in a profile run."""
        ...

    @property
    def multi_modal_placeholder_maps(self) -> Mapping[str, PlaceholderMap] | None:
        """The prompt's maps by modality."""
        ...

    @property
    def seq_ids(self) -> Sequence[int]:
        """The sequences."""
        ...

    @property
    def input_tokens(self) -> Sequence[Sequence[int]]:
        """Query tokens of each sequence."""
        ...

    @property
    def orig_seq_lens(self) -> Sequence[int]:
        """Computed plus query tokens."""
        ...

    @property
    def seq_lens(self) -> Sequence[int]:
        """The same, cut to the sliding window."""
        ...

    @property
    def query_lens(self) -> Sequence[int]:
        """Number of query tokens."""
        ...

    @property
    def context_lens(self) -> Sequence[int]:
        """Computed tokens."""
        ...

    @property
    def curr_sliding_window_blocks(self) -> Sequence[int]:
        """Last blocks that a decode's window reaches, 0 for all."""
        ...


class AttentionBackendV0(Protocol):
    """What is read of a runner's backend."""

    def get_name(self) -> str:
        """Such as "FLASH_ATTN"."""
        ...

    def make_metadata(self, *args: Any, **kwargs: Any) -> Any:
        """Metadata of the backend's class, by keyword."""
        ...


class Runner(Protocol):
    """What is read of a model runner."""

    @property
    def device(self) -> torch.device | str:
        """Where metadata goes."""
        ...

    @property
    def pin_memory(self) -> bool:
        """Whether the host has pinned memory."""
        ...

    @property
    def graph_block_tables(self) -> np.ndarray:
        """(largest batch, most blocks of a sequence) int32: the size of graphs' block tables."""
        ...

    @property
    def max_seq_len_to_capture(self) -> int:
        """Longest sequence, in tokens, that a graph is captured for."""
        ...

    @property
    def attn_backend(self) -> AttentionBackendV0:
        """Makes the metadata of graphs."""
        ...

    def get_max_block_per_batch(self) -> int:
        """Most blocks of a sequence."""
        ...


class InputBuilder(Protocol):
    """What is read of the builder of a step's model input."""

    @property
    def runner(self) -> Runner:
        """The runner of the model."""
        ...

    @property
    def sliding_window(self) -> int | None:
        """In tokens."""
        ...

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        ...

    @property
    def inter_data_list(self) -> Sequence[InterData]:
        """The batch's sequence groups, prompts first."""
        ...

    @property
    def chunked_prefill_enabled(self) -> bool:
        """Whether prompts may be computed in chunks."""
        ...
