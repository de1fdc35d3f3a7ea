"""Configuration and results of builders of state-space metadata (SPEC.md section 17)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch


@dataclass(frozen=True)
class StateSpaceConfig:
    """Settings of the layers and of the engine that a builder of state-space metadata reads."""

    layer: Literal[
        "mamba1", "mamba2", "short_conv", "gdn", "kda", "ple_short_conv", "linear", "bailing"
    ] = "mamba2"
    """Kind of the layers, of `mamba_build` one of the first three."""
    block_size: int = 16
    """Tokens per block of the layers' group."""
    mamba_cache_mode: Literal["none", "align"] = "align"
    num_speculative_tokens: int = 0
    """Drafts of a request in one step, at most."""
    chunk_size: int = 256
    """Tokens of a chunk of mamba2's scan."""
    checkpoint_alignment: int | None = None
    """Number that divides the query tokens before a state which a prefill of mamba2 exports; None
    without exports. In tokens, as the two below."""
    hash_block_size: int = 16
    cache_hit_alignment_tokens: int = 16
    """Number that divides the computed tokens of a request that hits cached blocks."""
    has_full_graphs: bool = False
    """True if decode steps are replayed by full CUDA graphs."""
    max_num_seqs: int = 256


@dataclass(frozen=True)
class MambaMetadata:
    """Metadata of mamba and short-convolution layers: decodes `_d`, then prefills `_p`."""

    num_decodes: int
    num_decode_tokens: int
    num_prefills: int
    num_prefill_tokens: int
    num_reqs: int
    state_indices_tensor_d: torch.Tensor
    state_indices_tensor_p: torch.Tensor
    query_start_loc_d: torch.Tensor | None = None
    num_accepted_tokens: torch.Tensor | None = None
    query_start_loc_p: torch.Tensor | None = None
    has_initial_states_p: torch.Tensor | None = None
    prep_initial_states: bool = False
    cu_chunk_seqlen_p: torch.Tensor | None = None
    seq_idx_p: torch.Tensor | None = None
    last_chunk_indices_p: torch.Tensor | None = None
    checkpoint_chunk_idx: torch.Tensor | None = None


@dataclass(frozen=True)
class LinearMetadata:
    """Metadata of lightning attention layers: decodes, then prefills."""

    num_decodes: int
    num_decode_tokens: int
    num_prefills: int
    num_prefill_tokens: int
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    state_indices_tensor: torch.Tensor


@dataclass(frozen=True)
class BailingMetadata(LinearMetadata):
    """Metadata of lightning attention layers whose decodes `_d` may have drafts."""

    state_indices_tensor_d: torch.Tensor
    state_indices_tensor_p: torch.Tensor
    query_start_loc_d: torch.Tensor | None = None
    num_accepted_tokens: torch.Tensor | None = None


@dataclass(frozen=True)
class _DraftMetadata:
    """Metadata of speculative rows and of all others."""

    num_decodes: int
    num_decode_tokens: int
    num_prefills: int
    num_prefill_tokens: int
    num_actual_tokens: int
    num_spec_decodes: int = 0
    num_spec_decode_tokens: int = 0
    spec_query_start_loc: torch.Tensor | None = None
    spec_state_indices_tensor: torch.Tensor | None = None
    spec_token_indx: torch.Tensor | None = None
    non_spec_token_indx: torch.Tensor | None = None
    num_accepted_tokens: torch.Tensor | None = None


@dataclass(frozen=True)
class KDAMetadata(_DraftMetadata):
    """Metadata of Kimi delta attention layers."""

    has_initial_state: torch.Tensor | None = None
    non_spec_query_start_loc: torch.Tensor | None = None
    non_spec_state_indices_tensor: torch.Tensor | None = None
    spec_token_start: int | None = None
    non_spec_token_start: int | None = None


@dataclass(frozen=True)
class GDNMetadata(_DraftMetadata):
    """Metadata of gated delta net layers."""

    has_initial_state: torch.Tensor | None = None
    non_spec_query_start_loc: torch.Tensor | None = None
    non_spec_state_indices_tensor: torch.Tensor | None = None
    spec_sequence_masks: torch.Tensor | None = None
    uniform_spec_sequence_length: int | None = None
    chunk_indices: torch.Tensor | None = None
    chunk_offsets: torch.Tensor | None = None
    prefill_query_start_loc: torch.Tensor | None = None
    prefill_state_indices: torch.Tensor | None = None
    prefill_has_initial_state: torch.Tensor | None = None


@dataclass(frozen=True)
class PLEShortConvMetadata(_DraftMetadata):
    """Metadata of short convolutions of per-layer embeddings."""

    spec_query_len: int = 1
    max_prefill_query_len: int = 0
    state_indices_tensor: torch.Tensor | None = None
    has_initial_states_d: torch.Tensor | None = None
    has_initial_states_p: torch.Tensor | None = None
    query_start_loc_p: torch.Tensor | None = None
    spec_sequence_masks: torch.Tensor | None = None
