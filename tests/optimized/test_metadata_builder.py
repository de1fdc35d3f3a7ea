"""Tests of the V0 metadata builder: equality with the reference, aliasing, and no sync."""

from __future__ import annotations

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch

from attnproof import optimized, reference
from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.cases.engines.script_v0 import input_builder
from attnproof.harness.cases.engines.v0 import MetadataV0, Runner, Step, build_lengths, seq_groups


def _built(package, groups, arguments, **changes):
    class Builder(package.CommonMetadataBuilder):
        _metadata_cls = MetadataV0

    engine = input_builder()
    vars(engine).update(changes, inter_data_list=copy.deepcopy(groups))
    return Builder(engine).build(*arguments)


def test_the_tensors_of_a_batch_do_not_overlap():
    batch = make_batch([1] * 5, [3] * 5, 2)
    step = Step()
    seq_lens, new = build_lengths(batch, step)
    made = _built(optimized, seq_groups(batch, step), (seq_lens, new, -1, 5))
    names = ("seq_lens_tensor", "query_start_loc", "seq_start_loc", "context_lens_tensor")
    tensors = [*(getattr(made, name) for name in names), made.block_tables]
    spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors)
    assert all(stop <= start for (_, stop), (start, _) in pairwise(spans))
    assert all(tensor.is_contiguous() for tensor in tensors)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("pad_size", [-1, 3])
def test_nothing_synchronises(pad_size):
    batch = make_batch([1] * 5, [3] * 5, 2)
    step = Step(pad_size=pad_size)
    seq_lens, new = build_lengths(batch, step)
    tables = np.zeros((8, 4), dtype=np.int32)
    runner = Runner(torch.device("cuda"), tables, pin_memory=True)
    arguments = (seq_groups(batch, step), (seq_lens, new, pad_size, len(seq_lens)))
    expected = _built(reference, *arguments, runner=runner)
    _built(optimized, *arguments, runner=runner)  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        made = _built(optimized, *arguments, runner=runner)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(made.block_tables, expected.block_tables)
    assert torch.equal(made.slot_mapping, expected.slot_mapping)
    assert made.seq_lens_tensor.is_cuda
