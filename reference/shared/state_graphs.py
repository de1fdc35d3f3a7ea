"""Builders of state-space metadata that full CUDA graphs read (SPEC.md section 17)."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Final

import torch

from ..interface.errors import MetadataError
from ..interface.state_space import StateSpaceConfig
from .delta_builders import gdn_build, kda_build, ple_short_conv_build
from .metadata import CommonAttentionMetadata
from .state_builders import bailing_build, linear_build, mamba_build

__all__ = ["StateSpaceBuilder"]

_BUILD: Final[dict[str, Any]] = {
    "gdn": gdn_build,
    "kda": kda_build,
    "ple_short_conv": ple_short_conv_build,
    "linear": linear_build,
    "bailing": bailing_build,
}


class StateSpaceBuilder:
    """Builder of one group's layers, with the buffers that its graphs read."""

    def __init__(self, config: StateSpaceConfig) -> None:
        self.config = config
        self._buffers: dict[str, torch.Tensor] = {}

    def build(
        self,
        common_attn_metadata: CommonAttentionMetadata,
        num_accepted_tokens: torch.Tensor | None = None,
        num_decode_draft_tokens_cpu: torch.Tensor | None = None,
    ) -> Any:
        """Return the metadata of a step; without prefills its tensors lie in the buffers."""
        counts: tuple[Any, ...] = (num_accepted_tokens, num_decode_draft_tokens_cpu)
        build = _BUILD.get(self.config.layer, mamba_build)
        built = build(common_attn_metadata, self.config, *counts[: 2 * (build != linear_build)])
        if self.config.has_full_graphs and not built.num_prefills:
            built = replace(built, **self._kept(built))
        # What another group's builder builds with its own table.
        object.__setattr__(built, "step", (common_attn_metadata, *counts))
        return built

    def build_for_cudagraph_capture(self, common_attn_metadata: CommonAttentionMetadata) -> Any:
        """Return the metadata that a graph of decodes, or of queries with all drafts, reads."""
        if not self.config.num_speculative_tokens:
            return self.build(common_attn_metadata)
        queries = common_attn_metadata.query_start_loc.diff()
        return self.build(common_attn_metadata, queries, queries.cpu() - 1)

    def update_block_table(
        self, metadata: Any, block_table_tensor: torch.Tensor, slot_mapping: torch.Tensor
    ) -> Any:
        """Return the metadata that another group's builder built, with this group's table.

        Each field is what `build` returns for that step with this table; `metadata` stays.
        """
        if not hasattr(metadata, "step"):
            raise MetadataError(
                "StateSpaceBuilder.update_block_table",
                "metadata",
                type(metadata).__name__,
                "what another group's `build` returned",
            )
        batch, *counts = metadata.step
        tables = {"block_table_tensor": block_table_tensor, "slot_mapping": slot_mapping}
        return self.build(replace(batch, **tables), *counts)

    def _kept(self, built: Any) -> dict[str, torch.Tensor]:
        """Return the tensors of a result, copied to the first ones of their shape or larger."""
        views = {}
        for name, value in ((f.name, getattr(built, f.name)) for f in fields(built)):
            if isinstance(value, torch.Tensor):
                most = (self.config.max_num_seqs + 1) * (1 + self.config.num_speculative_tokens)
                shape = (most, *value.shape[1:])
                buffer = self._buffers.setdefault(name, value.new_zeros(shape))
                views[name] = buffer[: len(value)].copy_(value)
        return views
