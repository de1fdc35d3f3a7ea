"""Attention shapes of published models on one GPU, with windows and soft caps.

The numbers come from the models' public configurations. A window includes the query's own
key.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class ModelShape(NamedTuple):
    """Heads, window and soft cap of one attention layer."""

    name: str
    num_heads: int
    num_kv_heads: int
    head_size: int
    window: int = 0
    """Sliding window in tokens, 0 for none."""
    soft_cap: int = 0
    """0 for none."""

    @property
    def group(self) -> int:
        """Number of query heads that share a kv head."""
        return self.num_heads // self.num_kv_heads

    @property
    def layer(self) -> dict[str, int]:
        """Parameters of a case for the layer's heads."""
        return {"num_kv_heads": self.num_kv_heads, "group": self.group, "head_size": self.head_size}

    @property
    def cache(self) -> dict[str, int]:
        """Parameters of a case for the layer's cache."""
        return {"num_kv_heads": self.num_kv_heads, "head_size": self.head_size}


MODELS: Final = (
    ModelShape("Llama-3.1-8B", 32, 8, 128),
    ModelShape("Llama-3.1-70B, 8 GPUs", 8, 1, 128),
    ModelShape("Llama-4-Scout, 8 GPUs", 5, 1, 128),
    ModelShape("Qwen3-30B-A3B, 4 GPUs", 8, 1, 128),
    ModelShape("Qwen3-235B-A22B, 4 GPUs", 16, 1, 128),
    ModelShape("gpt-oss-20b", 64, 8, 64, window=128),
    ModelShape("Mistral-7B-v0.1", 32, 8, 128, window=4096),
    ModelShape("Gemma-3-27B", 32, 16, 128, window=1024),
    ModelShape("Gemma-2-9B", 16, 8, 256, window=4096, soft_cap=50),
    ModelShape("Falcon-7B", 71, 1, 64),
    ModelShape("Phi-2", 32, 32, 80),
    ModelShape("Phi-3-mini", 32, 32, 96, window=2047),
    ModelShape("gpt-j-6b", 16, 16, 256),
)
