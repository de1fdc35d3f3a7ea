"""Types of a batch and of its parts (SPEC.md section 1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch

from .fields import aligned


@dataclass
class BatchFields:
    """Fields of `CommonAttentionMetadata`: R requests, T tokens, W block-table columns.

    Lengths and offsets count tokens; int32 unless the caller chose int64. SPEC.md section 1.
    """

    # Separate from CommonAttentionMetadata, whose methods import the checks of these fields.

    query_start_loc: torch.Tensor = field(metadata=aligned("offsets"))
    """(R+1,) offset of each request's first query token, then the end of the last."""
    query_start_loc_cpu: torch.Tensor = field(metadata=aligned("offsets"))
    """(R+1,) mirror of `query_start_loc` on the CPU."""
    seq_lens: torch.Tensor = field(metadata=aligned("request", updated=True))
    """(R,) computed plus query tokens of each request."""
    seq_lens_cpu: torch.Tensor = field(metadata=aligned("request", updated=True))
    """(R,) mirror of `seq_lens` on the CPU."""
    num_computed_tokens_cpu: torch.Tensor = field(metadata=aligned("request", updated=True))
    """(R,) tokens whose keys and values are already cached, on the CPU."""
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    """Upper bound of the query lengths, in tokens."""
    max_seq_len: int
    """Upper bound of the sequence lengths, in tokens."""
    block_table_tensor: torch.Tensor = field(metadata=aligned("request"))
    """(R, W) int32 block ids; columns after the last block of a sequence are stale."""
    slot_mapping: torch.Tensor = field(metadata=aligned("token", fill=-1))
    """(>= num_actual_tokens,) int64 cache slot of each token, -1 for none."""
    causal: bool = True
    logits_indices_padded: torch.Tensor | None = None
    """Token indices whose logits are sampled; stale after the first num_logits_indices."""
    num_logits_indices: int | None = None
    """Number of sampled tokens; may be set without their indices."""
    encoder_seq_lens: np.ndarray | None = field(default=None, metadata=aligned("request"))
    """(R,) encoder tokens of each request."""
    dcp_local_seq_lens: torch.Tensor | None = field(
        default=None, metadata=aligned("request", updated=True)
    )
    """(R,) this rank's share of each sequence under decode context parallelism."""


@dataclass
class UBatchSlice:
    """One micro-batch: its requests and its tokens (SPEC.md section 3)."""

    request_slice: slice
    token_slice: slice

    def is_empty(self) -> bool:
        """True if either slice is empty."""
        return bool(
            self.request_slice.start >= self.request_slice.stop
            or self.token_slice.start >= self.token_slice.stop
        )

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the slice."""
        return int(self.token_slice.stop - self.token_slice.start)


@dataclass
class PerLayerParameters:
    """Attention hyperparameters of one layer; equality ignores the last two fields."""

    window_left: int
    logits_soft_cap: float | None
    sm_scale: float
    has_sinks: bool = False
    has_same_window_lefts: bool | None = None
    has_same_all_params: bool | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PerLayerParameters):
            return NotImplemented
        return self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash(self._compared())

    def _compared(self) -> tuple[int, float | None, float, bool]:
        return (self.window_left, self.logits_soft_cap, self.sm_scale, self.has_sinks)


class MLADims(NamedTuple):
    """Dimensions of multi-head latent attention, in elements."""

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


@runtime_checkable
class KVSharingFastPrefillMetadata(Protocol):
    """Metadata with the tokens whose logits are sampled (SPEC.md section 6)."""

    logits_indices_padded: torch.Tensor | None
    num_logits_indices: int | None


@runtime_checkable
class InputBatch(Protocol):
    """Part of an engine's batch that `reorder_batch_to_split_decodes_and_prefills` reads.

    It may also have `num_computed_tokens_cpu` and `num_prompt_tokens`, arrays of at least as
    many entries as requests, in row order.
    """

    @property
    def req_ids(self) -> list[Any]:
        """Request ids in row order."""
        ...

    def swap_states(self, i: int, j: int) -> None:
        """Exchange rows i and j."""
        ...


@runtime_checkable
class SchedulerOutput(Protocol):
    """Part of a schedule that `reorder_batch_to_split_decodes_and_prefills` reads."""

    @property
    def num_scheduled_tokens(self) -> dict[Any, int]:
        """Query tokens of each request in this engine step, by request id."""
        ...
