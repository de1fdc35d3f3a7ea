"""State that a first-generation (V0) backend keeps for CUDA graphs (SPEC.md section 7)."""

from __future__ import annotations

from typing import Any

from attnproof.reference import shared
from attnproof.reference.shared.graph_state import DECODER, ENCODER, PADDING, fill

from .checking import checks

__all__ = [
    "CommonAttentionState",
]

_checked = checks.follow(globals())


class CommonAttentionState(shared.CommonAttentionState):
    """Input buffers of captured graphs, which must stay alive as long as the graphs.

    Captures always check their input. SPEC.md section 7.
    """

    def prepare_graph_input_buffers(
        self,
        input_buffers: dict[str, Any],
        attn_metadata: Any,
        is_encoder_decoder_model: bool = False,
    ) -> None:
        """Copy the tensors of an engine step to the first rows and columns of the buffers.

        Result and errors as in `reference`. Runs before every replay of a graph.
        """
        if _checked:
            super().prepare_graph_input_buffers(
                input_buffers, attn_metadata, is_encoder_decoder_model
            )
            return
        decode = attn_metadata.decode_metadata  # a property, which may build the metadata
        slots = attn_metadata.slot_mapping
        fill(input_buffers["slot_mapping"], slots, PADDING["slot_mapping"])
        for name in DECODER + ENCODER if is_encoder_decoder_model else DECODER:
            fill(input_buffers[name], getattr(decode, name), PADDING[name])
