"""Graph state that does not clear the rows beyond a step (K13)."""

from attnproof import reference


class CommonAttentionState(reference.CommonAttentionState):
    def prepare_graph_input_buffers(
        self, input_buffers, attn_metadata, is_encoder_decoder_model=False
    ):
        before = {name: buffer.clone() for name, buffer in input_buffers.items()}
        super().prepare_graph_input_buffers(input_buffers, attn_metadata, is_encoder_decoder_model)
        rows = len(attn_metadata.seq_lens_tensor)
        for name, buffer in input_buffers.items():
            buffer[rows:] = before[name][rows:]
