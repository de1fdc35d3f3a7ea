"""State that a first-generation (V0) backend keeps for CUDA graphs (SPEC.md section 7).

Both packages share it: copies into buffers cannot be made faster, but `optimized` can leave
out the checks before them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from ..checks.common import check_int, check_length, check_tensor
from ..checks.v0 import graph_shape
from ..interface.constants import PAD_SLOT_ID
from ..interface.errors import MetadataError
from ..interface.protocols_v0 import Runner
from .backend import AttentionState

ENCODER_DECODER_BACKENDS: Final = ("XFORMERS", "FLASH_ATTN", "ROCM_FLASH")
PADDING: Final = {
    "slot_mapping": PAD_SLOT_ID,
    "seq_lens_tensor": 1,
    "block_tables": 0,
    "encoder_seq_lens_tensor": 1,
    "cross_slot_mapping": PAD_SLOT_ID,
    "cross_block_tables": 1,
}
"""Value of each buffer in rows without a request: such a row writes no token and reads one."""
DECODER: Final = ("seq_lens_tensor", "block_tables")
ENCODER: Final = ("encoder_seq_lens_tensor", "cross_slot_mapping", "cross_block_tables")


class CommonAttentionState(AttentionState):
    """Input buffers of captured graphs, which must stay alive as long as the graphs.

    Every method raises MetadataError before it changes anything. SPEC.md section 7.
    """

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._is_graph_capturing = False

    @contextmanager
    def graph_capture(self, max_batch_size: int) -> Iterator[None]:
        """Return a context in which graphs of up to `max_batch_size` rows are captured.

        The buffers are on the runner's device: slots (rows,) int64, sequence lengths
        (rows,) int32, block tables (rows, W) int32 copied from the runner. An exception
        restores the previous state. Raise MetadataError inside another capture, and for
        more rows than the runner's block tables have.
        """
        operation = "CommonAttentionState.graph_capture"
        if self._is_graph_capturing:
            raise MetadataError(operation, "state", "capturing", "no capture inside a capture")
        check_int(operation, "max_batch_size", max_batch_size, 1)
        height, _ = graph_shape(operation, self.runner)
        if max_batch_size > height:
            expected = f"at most {height}, the rows of graph_block_tables"
            raise MetadataError(operation, "max_batch_size", max_batch_size, expected)
        tables = torch.from_numpy(self.runner.graph_block_tables[:max_batch_size].copy())
        slots = self._full((max_batch_size,), PAD_SLOT_ID, torch.int64)
        seq_lens = self._full((max_batch_size,), 1)
        # Assigned after all allocations, so that a failed one leaves the state unchanged.
        self._graph_block_tables = tables.to(self.runner.device)
        self._graph_slot_mapping, self._graph_seq_lens = slots, seq_lens
        self._is_graph_capturing = True
        try:
            yield
        finally:
            self._is_graph_capturing = False
            del self._graph_slot_mapping, self._graph_seq_lens, self._graph_block_tables

    def graph_clone(self, batch_size: int) -> CommonAttentionState:
        """Return a state of the same class for the graph of `batch_size` rows, not capturing.

        Raise MetadataError outside a capture and for more rows than are captured.
        """
        self._check_rows("CommonAttentionState.graph_clone", batch_size)
        return self.__class__(self.runner)

    def graph_capture_get_metadata_for_batch(
        self, batch_size: int, is_encoder_decoder_model: bool = False
    ) -> Any:
        """Return metadata of `batch_size` decodes, its tensors the first rows of the buffers.

        Raise MetadataError outside a capture, for more rows than are captured, and for an
        encoder-decoder model on a backend that does not support one.
        """
        operation = "CommonAttentionState.graph_capture_get_metadata_for_batch"
        self._check_rows(operation, batch_size)
        if is_encoder_decoder_model:
            self._check_encoder_decoder(operation)
        metadata = self.runner.attn_backend.make_metadata(
            num_prefills=0,
            num_prefill_tokens=0,
            num_decode_tokens=batch_size,
            slot_mapping=self._graph_slot_mapping[:batch_size],
            multi_modal_placeholder_index_maps=None,
            enable_kv_scales_calculation=True,
            seq_lens=None,
            seq_lens_tensor=self._graph_seq_lens[:batch_size],
            max_query_len=1,
            max_decode_query_len=1,
            max_prefill_seq_len=0,
            max_decode_seq_len=self.runner.max_seq_len_to_capture,
            query_start_loc=None,
            seq_start_loc=None,
            context_lens_tensor=None,
            block_tables=self._graph_block_tables[:batch_size],
            use_cuda_graph=True,
        )
        if is_encoder_decoder_model:
            width = self.runner.get_max_block_per_batch()
            metadata.cross_slot_mapping = self._full((0,), PAD_SLOT_ID)
            metadata.cross_block_tables = self._full((batch_size, width), 1)
            metadata.encoder_seq_lens = self._full((batch_size,), 1)
            metadata.encoder_seq_lens_tensor = self._full((batch_size,), 1)
            metadata.max_encoder_seq_len = self.runner.max_seq_len_to_capture
            metadata.num_encoder_tokens = 0
        return metadata

    def get_graph_input_buffers(
        self, attn_metadata: Any, is_encoder_decoder_model: bool = False
    ) -> dict[str, Any]:
        """Return the tensors of the captured metadata by name, without copying them.

        They include the encoder's for an encoder-decoder model. Raise MetadataError for
        metadata with prefills and for a missing tensor.
        """
        operation = "CommonAttentionState.get_graph_input_buffers"
        return self._decode_tensors(operation, attn_metadata, is_encoder_decoder_model)

    def prepare_graph_input_buffers(
        self,
        input_buffers: dict[str, Any],
        attn_metadata: Any,
        is_encoder_decoder_model: bool = False,
    ) -> None:
        """Copy the tensors of an engine step to the first rows and columns of the buffers.

        All other rows and columns get the values of a capture: slot -1, lengths 1,
        block 0, cross block 1, so no value of an earlier engine step is left. Raise
        MetadataError for an engine step that is larger than the buffers or has prefills,
        and for a missing buffer.
        """
        operation = "CommonAttentionState.prepare_graph_input_buffers"
        sources = self._decode_tensors(operation, attn_metadata, is_encoder_decoder_model)
        for name, source in sources.items():
            if name not in input_buffers:
                raise MetadataError(operation, "input_buffers", f"without {name}", "all buffers")
            buffer = check_tensor(operation, name, input_buffers[name], _ndim(name))
            if any(n > room for n, room in zip(source.shape, buffer.shape, strict=True)):
                expected = f"at most the buffer's {tuple(buffer.shape)}"
                raise MetadataError(operation, name, f"of shape {tuple(source.shape)}", expected)
        for name, source in sources.items():
            fill(input_buffers[name], source, PADDING[name])

    def begin_forward(self, model_input: Any) -> None:
        """Do nothing: `prepare_graph_input_buffers` has written the input of the graphs."""

    def _decode_tensors(
        self, operation: str, metadata: Any, is_encoder_decoder: bool
    ) -> dict[str, Any]:
        """Return the tensors of a decode-only engine step, by name."""
        if is_encoder_decoder:
            self._check_encoder_decoder(operation)
        if metadata.num_prefills:
            raise MetadataError(operation, "num_prefills", metadata.num_prefills, "decodes only: 0")
        decode = metadata.decode_metadata
        if decode is None:
            raise MetadataError(operation, "decode_metadata", None, "the decodes of the step")
        tensors: dict[str, Any] = {name: getattr(decode, name, None) for name in DECODER}
        tensors["slot_mapping"] = metadata.slot_mapping
        if is_encoder_decoder:
            tensors |= {name: getattr(decode, name, None) for name in ENCODER}
        for name, tensor in tensors.items():
            if tensor is None:
                raise MetadataError(operation, name, None, "a tensor")
            check_tensor(operation, name, tensor, _ndim(name))
            if name != "cross_slot_mapping":
                check_length(operation, name, tensor, len(tensors["seq_lens_tensor"]))
        return tensors

    def _check_rows(self, operation: str, batch_size: int) -> None:
        if not self._is_graph_capturing:
            raise MetadataError(operation, "state", "not capturing", "a call inside graph_capture")
        check_int(operation, "batch_size", batch_size, 1)
        most = self._graph_seq_lens.shape[0]
        if batch_size > most:
            expected = f"at most max_batch_size = {most}"
            raise MetadataError(operation, "batch_size", batch_size, expected)

    def _check_encoder_decoder(self, operation: str) -> None:
        name = self.runner.attn_backend.get_name()
        if name not in ENCODER_DECODER_BACKENDS:
            expected = f"one for encoder-decoder models: {', '.join(ENCODER_DECODER_BACKENDS)}"
            raise MetadataError(operation, "attn_backend", name, expected)

    def _full(
        self, shape: tuple[int, ...], value: int, dtype: torch.dtype = torch.int32
    ) -> torch.Tensor:
        return torch.full(shape, value, dtype=dtype, device=self.runner.device)


def _ndim(name: str) -> int:
    return 2 if name.endswith("block_tables") else 1


def fill(buffer: torch.Tensor, source: torch.Tensor, padding: int) -> None:
    """Copy `source` to the first rows and columns of the buffer; fill the rest with `padding`."""
    if buffer.shape == source.shape:
        buffer.copy_(source, non_blocking=True)
        return
    rows = source.shape[0]
    # Every element is written once: the three regions do not overlap.
    buffer[rows:].fill_(padding)
    if source.ndim == 2:
        buffer[:rows, source.shape[1] :].fill_(padding)
        buffer = buffer[:, : source.shape[1]]
    buffer[:rows].copy_(source, non_blocking=True)
