"""K26: after a prefix-cache hit the block table of a chunk ends with the prefix."""

from __future__ import annotations

from typing import Any

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug

BUG = Bug(
    "K26",
    "CommonMetadataBuilder",
    "vllm-project/vllm#9532",
    ("block table shorter than its sequence",),
)


class CommonMetadataBuilder(reference.CommonMetadataBuilder[Any]):
    """Takes the computed blocks for all blocks of the sequence."""

    def _add_seq_group(self, inter_data: Any, chunked_prefill_enabled: bool) -> None:
        super()._add_seq_group(inter_data, chunked_prefill_enabled)
        if inter_data.prefix_cache_hit:
            computed = inter_data.context_lens[0] // self.block_size
            self.block_tables[-1] = self.block_tables[-1][:computed]
