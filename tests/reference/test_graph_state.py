"""Tests of the state of captured V0 graphs (SPEC.md section 7)."""

from __future__ import annotations

import pytest
import torch

from attnproof.harness.cases.engines.script_v0 import BLOCKS, ROWS, decodes, make_runner
from attnproof.reference import CommonAttentionState, MetadataError


@pytest.fixture
def state():
    return CommonAttentionState(make_runner())


def test_buffers_of_a_capture(state):
    with state.graph_capture(3):
        made = state.graph_capture_get_metadata_for_batch(2)
    assert made.slot_mapping.tolist() == [-1, -1]
    assert made.slot_mapping.dtype == torch.int64
    assert made.seq_lens_tensor.tolist() == [1, 1]
    assert made.block_tables.shape == (2, BLOCKS)
    assert (made.num_decode_tokens, made.max_decode_seq_len) == (2, 4096)
    assert (made.max_query_len, made.max_decode_query_len) == (1, 1)
    assert made.use_cuda_graph is True


@pytest.mark.spec("E13: published code says `.cuda()`")
def test_buffers_are_on_the_runners_device():
    elsewhere = make_runner()
    elsewhere.device = torch.device("meta")  # any device that is not the CPU
    state = CommonAttentionState(elsewhere)
    with state.graph_capture(2):
        made = state.graph_capture_get_metadata_for_batch(2, True)
    tensors = [value for value in vars(made).values() if isinstance(value, torch.Tensor)]
    assert len(tensors) > 5
    assert {tensor.device.type for tensor in tensors} == {"meta"}


@pytest.mark.spec("E11: published `prepare_…` forgets the last")
@pytest.mark.parametrize("backend", ["XFORMERS", "FLASH_ATTN", "ROCM_FLASH"])
def test_encoder_decoder_models_in_every_method(backend):
    state = CommonAttentionState(make_runner(backend))
    with state.graph_capture(2):
        made = state.graph_capture_get_metadata_for_batch(2, True)
    assert made.cross_slot_mapping.shape == (0,)
    assert made.cross_block_tables.tolist() == [[1] * BLOCKS] * 2
    assert made.encoder_seq_lens_tensor.tolist() == made.encoder_seq_lens.tolist() == [1, 1]
    assert (made.max_encoder_seq_len, made.num_encoder_tokens) == (4096, 0)
    buffers = state.get_graph_input_buffers(made, True)
    state.prepare_graph_input_buffers(buffers, decodes(1, 2, 20), True)
    assert buffers["encoder_seq_lens_tensor"].tolist() == [21, 1]
    assert buffers["cross_block_tables"][0].tolist() == [22, 22, 1, 1, 1]


def test_other_backends_have_no_encoder_decoder_models():
    state = CommonAttentionState(make_runner("FLASHINFER"))
    with (
        state.graph_capture(2),
        pytest.raises(MetadataError, match="attn_backend is FLASHINFER"),
    ):
        state.graph_capture_get_metadata_for_batch(2, True)


@pytest.mark.spec("E12: published code stays in capturing mode")
def test_an_exception_leaves_the_state_as_before(state):
    with pytest.raises(ZeroDivisionError), state.graph_capture(2):
        raise ZeroDivisionError
    assert vars(state) == vars(CommonAttentionState(state.runner))
    with state.graph_capture(2):
        assert type(state.graph_clone(2)) is CommonAttentionState


def test_calls_outside_a_capture_are_errors(state):
    for call in (state.graph_clone, state.graph_capture_get_metadata_for_batch):
        with pytest.raises(MetadataError, match="state is not capturing"):
            call(1)


def test_a_capture_inside_a_capture_leaves_the_outer_one(state):
    with state.graph_capture(3):
        with (
            pytest.raises(MetadataError, match="no capture inside a capture"),
            state.graph_capture(2),
        ):
            pass
        assert state.graph_capture_get_metadata_for_batch(3).seq_lens_tensor.shape == (3,)


@pytest.mark.spec("E16: published code copies whole buffers only")
def test_a_smaller_batch_overwrites_all_of_a_larger_one(state):
    with state.graph_capture(ROWS):
        made = state.graph_capture_get_metadata_for_batch(3)
    buffers = state.get_graph_input_buffers(made)
    state.prepare_graph_input_buffers(buffers, decodes(3, BLOCKS, 20))
    state.prepare_graph_input_buffers(buffers, decodes(1, 2, 50))
    assert buffers["seq_lens_tensor"].tolist() == [50, 1, 1]
    assert buffers["slot_mapping"].tolist() == [50, -1, -1]
    assert buffers["block_tables"].tolist() == [[50, 50, 0, 0, 0], [0] * 5, [0] * 5]


@pytest.mark.parametrize(("rows", "width"), [(3, 1), (1, BLOCKS + 1)])
def test_a_batch_larger_than_the_graph_writes_nothing(state, rows, width):
    with state.graph_capture(2):
        buffers = state.get_graph_input_buffers(state.graph_capture_get_metadata_for_batch(2))
    with pytest.raises(MetadataError, match="expected at most the buffer's"):
        state.prepare_graph_input_buffers(buffers, decodes(rows, width, 20))
    assert buffers["seq_lens_tensor"].tolist() == [1, 1]
    assert buffers["slot_mapping"].tolist() == [-1, -1]


@pytest.mark.spec("E51: published code on a CPU hands out the runner's own array")
def test_the_runners_tables_are_copied(state):
    with state.graph_capture(2):
        buffers = state.get_graph_input_buffers(state.graph_capture_get_metadata_for_batch(2))
    state.prepare_graph_input_buffers(buffers, decodes(2, BLOCKS, 20))
    assert (state.runner.graph_block_tables == 0).all()
