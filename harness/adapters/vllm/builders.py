"""vLLM's XFormers builder under our name, which takes our batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attnproof.harness.adapters.vllm.functions import reorder
from attnproof.harness.adapters.vllm.metadata import theirs
from attnproof.harness.interfaces.builders import complete, support, use_cascade


def xformers_builder(cls: type[Any], reorder_function: Callable[..., Any]) -> type[Any]:
    """Return the XFormers builder; without `reorder_batch` it gets that of the model runner."""

    class XFormersAttentionMetadataBuilder(cls):  # type: ignore[misc]
        """vLLM's class, which takes our batches."""

        cudagraph_support = support(cls)

        def __init__(self, kv_cache_spec: Any, layer_names: Any, config: Any, device: Any) -> None:
            super().__init__(kv_cache_spec, layer_names, complete(config), device)

        def build(
            self, common_prefix_len: Any, common_attn_metadata: Any, *args: Any, **kwargs: Any
        ) -> Any:
            """Return vLLM's metadata for our batch."""
            metadata = theirs(common_attn_metadata)
            return super().build(common_prefix_len, metadata, *args, **kwargs)

        def use_cascade_attention(self, *args: Any, **kwargs: Any) -> bool:
            """Return the result of vLLM's class."""
            return use_cascade(super().use_cascade_attention, args, kwargs)

        if not hasattr(cls, "reorder_batch"):

            def reorder_batch(self, input_batch: Any, scheduler_output: Any) -> bool:
                """Reorder as the model runner does for a builder with this threshold."""
                threshold = self.reorder_batch_threshold
                return bool(reorder(reorder_function)(input_batch, scheduler_output, threshold))

    return XFormersAttentionMetadataBuilder
