"""Outputs survive the way from a candidate's process to the judge, or become unreadable."""

from __future__ import annotations

import os

import msgspec
import numpy as np
import pytest
import torch

from attnproof.harness.model.call import MISSING, Free
from attnproof.harness.model.place import Place
from attnproof.harness.oracles.equality import same
from attnproof.harness.running.exchange import values
from attnproof.harness.running.exchange.memory import SharedMemory
from attnproof.harness.running.exchange.values import Reader, TensorData, Unreadable, Writer


@pytest.fixture(scope="module")
def memory():
    return SharedMemory()


def travelled(values, memory, arena=()):
    """Return the values after the way, and the blocks of memory."""
    memory.clear()
    writer = Writer(arena)
    plain = [writer.write(value) for value in values]
    blocks, tensors = writer.blocks(memory)
    data = msgspec.msgpack.decode(msgspec.msgpack.encode(plain))
    copy = memory.copy(memory.used)
    found = [copy[block.offset :][: block.size] for block in blocks]
    reader = Reader(found, tensors)
    return [reader.read(value) for value in data], found


BASE = torch.arange(24, dtype=torch.int32)
EQUAL = {
    "none": None,
    "bool": True,
    "int": -(2**63),
    "large int": 2**64 + 1,
    "negative large int": -(2**70),
    "float": 0.5,
    "text": "Grüße",
    "integers": [1, 2, 3],
    "large integers": [1, 2**65],
    "nested": [[1, [2, None]], (3, "x"), {"a": [1], 2: (True,)}],
    "set": {1, 2},
    "slice": slice(1, None, 2),
    "place": Place("seq_lens", child=2),
    "missing": MISSING,
    "numpy": np.arange(6, dtype=np.int16).reshape(2, 3),
    "numpy bool": np.array([True, False]),
    "numpy scalar": np.int64(7),
    "contiguous": BASE,
    "strided": BASE.view(4, 6)[::2, 1::2],
    "transposed": BASE.view(4, 6).t(),
    "empty": torch.empty(0, 3, dtype=torch.int64),
    "scalar tensor": torch.tensor(5),
    "bool tensor": torch.tensor([True, False]),
    "bfloat16": torch.arange(4).to(torch.bfloat16),
    "float8": torch.arange(4).float().to(torch.float8_e4m3fn),
    "expanded": torch.zeros(1, dtype=torch.int64).expand(1000),
    "with gradient": torch.ones(2, requires_grad=True),
    "odd address": torch.arange(9, dtype=torch.uint8)[1:],
}


@pytest.mark.parametrize("name", EQUAL)
def test_value_is_equal_after_the_way(name, memory):
    value = EQUAL[name]
    [found], _ = travelled([value], memory)
    assert type(found) is type(value) if not isinstance(value, torch.Tensor) else True
    assert same(value, found)
    if isinstance(value, torch.Tensor):
        assert found.stride() == value.stride()
        assert not found.requires_grad


def test_bounds_keep_their_values(memory):
    [found], _ = travelled([Free(max_query_len=4)], memory)
    assert isinstance(found, Free)
    assert found.values == {"max_query_len": 4}


def test_tensors_share_memory_as_before(memory):
    whole = BASE.clone()
    [one, other, apart], _ = travelled([whole[2:10], whole[6:20], whole.clone()], memory)
    one[4] = 99
    assert other[0] == 99
    assert apart[6] == 6


def test_a_view_of_the_arena_is_a_view_of_its_block(memory):
    arena = BASE.clone()
    [found], blocks = travelled([arena[3:7]], memory, [arena])
    assert found.tolist() == [3, 4, 5, 6]
    assert found.data_ptr() == blocks[0].data_ptr() + 12


def evil_text():
    class Evil(list):
        def __repr__(self):
            raise SystemExit

        __str__ = __repr__

    return Evil()


class Lists(list):
    """A list of another class."""


NESTED: list[object] = []
for _ in range(200):
    NESTED = [NESTED]
UNREADABLE = {
    "meta": torch.empty(3, device="meta"),
    "sparse": torch.eye(3).to_sparse(),
    "expanded beyond memory": torch.zeros(1).expand(1 << 40),
    "int of many bits": 1 << 100_000,
    "another list": Lists([1]),
    "object": object(),
    "evil text": evil_text(),
    "numpy objects": np.array([object()]),
    "function": len,
}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_quantised_tensor_is_unreadable(memory):
    quantised = torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8)
    [found], _ = travelled([quantised], memory)
    assert isinstance(found, Unreadable)


@pytest.mark.parametrize("name", UNREADABLE)
def test_other_values_are_unreadable_and_equal_nothing(name, memory):
    [found], _ = travelled([UNREADABLE[name]], memory)
    assert isinstance(found, Unreadable)
    assert not same(found, found.__class__("x"))
    assert len(repr(found)) <= 2100


def test_depth_is_limited(memory):
    [found], _ = travelled([NESTED], memory)
    depth = 0
    while isinstance(found, list) and found:
        found, depth = found[0], depth + 1
    assert isinstance(found, Unreadable)
    assert depth <= 60


@pytest.mark.parametrize(
    "data",
    [
        TensorData(0, 8, "int32", (4,), (1,), "cpu"),
        TensorData(0, -4, "int32", (1,), (1,), "cpu"),
        TensorData(0, 0, "int32", (4,), (2,), "cpu"),
        TensorData(0, 0, "int32", (2,), (-1,), "cpu"),
        TensorData(7, 0, "int32", (1,), (1,), "cpu"),
        TensorData(0, 0, "no dtype", (1,), (1,), "cpu"),
    ],
)
def test_a_forged_tensor_is_refused(data):
    reader = Reader([torch.zeros(16, dtype=torch.uint8)], [data])
    with pytest.raises((ValueError, LookupError)):
        reader.read({"t": "tensor", "index": 0})


@pytest.mark.parametrize("plain", [{"t": "no kind"}, {"t": "tensor", "index": 3}, {"x": 1}])
def test_a_forged_value_is_refused(plain):
    with pytest.raises((ValueError, LookupError)):
        Reader((), ()).read(plain)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.skipif("ATTNPROOF_FAKE_CUDA" in os.environ, reason="its tensors are on the CPU")
def test_values_on_a_gpu_survive(memory):
    buffer = torch.arange(24, dtype=torch.int32, device="cuda")
    views = buffer, buffer[5:9], buffer[8:8], buffer.view(4, 6)[:0], buffer.view(4, 6).t()[1:]
    writer = Writer(())
    memory.clear()
    plain = [writer.write(value) for value in views]
    blocks, tensors = writer.blocks(memory)
    copy = memory.copy(memory.used)
    found = [copy[block.offset :][: block.size] for block in blocks]
    reader = Reader(found, [msgspec.structs.replace(data, device="cpu") for data in tensors])
    for value, data in zip(views, plain, strict=True):
        assert torch.equal(reader.read(data), value.cpu())


def test_an_empty_tensor_of_a_device_needs_no_copy(memory):
    empty = values._Range(torch.empty(0, 3, dtype=torch.int64))
    empty.device = torch.device("cuda", 99)  # no machine has it
    memory.clear()
    assert empty.put(memory).size == 0


def test_memory_that_is_full_is_an_error(memory):
    memory.clear(memory.used)
    writer = Writer(())
    writer.write(torch.empty((1 << 28) - 1, dtype=torch.int64))
    with pytest.raises(MemoryError):
        writer.blocks(memory)
    with pytest.raises(ValueError, match="bytes of a shared memory"):
        memory.copy(1 << 40)
