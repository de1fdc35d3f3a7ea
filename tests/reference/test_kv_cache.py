"""Tests of copying cache blocks: the worked example and errors."""

from __future__ import annotations

import pytest
import torch

SHAPE = (2, 4, 2, 3, 5)


def cache(*blocks, dtype=torch.float16):
    """Return a cache whose keys in block b are `blocks[b]`, and its values ten times that."""
    keys = torch.tensor(blocks).view(-1, 1, 1, 1).expand(-1, *SHAPE[2:])
    return torch.stack([keys, 100 * keys]).to(dtype)


def held(made):
    """Return the number in each block."""
    keys, values = made.long()
    assert torch.equal(values, 100 * keys)
    return [block.unique().tolist() for block in keys]


@pytest.mark.spec("Example: blocks [0,1,2,3] to a cache with blocks [10,11,12,13]")
def test_worked_example(package):
    source, target = cache(0, 1, 2, 3), cache(10, 11, 12, 13)
    package.swap_blocks(source, target, torch.tensor([[0, 3], [2, 0]]))
    assert held(target) == [[2], [11], [12], [0]]
    assert held(source) == [[0], [1], [2], [3]]
    layers = [cache(0, 1, 2, 3), cache(0, 1, 2, 3, 4, dtype=torch.float32)]
    package.copy_blocks(layers, torch.tensor([[3, 1], [3, 0]]))
    assert [held(layer) for layer in layers] == [
        [[3], [3], [2], [3]],
        [[3], [3], [2], [3], [4]],
    ]


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([[4, 0]], r"\[0\] is \(4, 0\), expected a source from 0 to 3"),
        ([[-1, 0]], r"\[0\] is \(-1, 0\), expected a source from 0 to 3"),
        ([[0, 1], [0, 4]], r"\[1\] is \(0, 4\), expected a destination from 0 to 3"),
        ([[0, -1]], r"\[0\] is \(0, -1\), expected a destination"),
        ([[0, 1], [2, 1]], r"\[1\] is \(2, 1\), expected a destination that no other pair has"),
    ],
)
def test_malformed_pairs_are_errors(package, pairs, message):
    source, target = cache(0, 1, 2, 3), cache(0, 1, 2, 3)
    for move in (
        lambda: package.swap_blocks(source, target, torch.tensor(pairs)),
        lambda: package.copy_blocks([target], torch.tensor(pairs)),
    ):
        with pytest.raises(package.MetadataError, match=message):
            move()
        assert held(target) == [[0], [1], [2], [3]]


@pytest.mark.parametrize("pairs", [[[0, 1], [1, 2]], [[1, 2], [0, 1]], [[3, 3]]])
def test_a_destination_within_one_cache_must_not_be_a_source(package, pairs):
    one, other = cache(0, 1, 2, 3), cache(0, 1, 2, 3)
    for move in (
        lambda: package.swap_blocks(one, one, torch.tensor(pairs)),
        lambda: package.copy_blocks([one], torch.tensor(pairs)),
    ):
        with pytest.raises(package.MetadataError, match="a destination that is no pair's source"):
            move()
    package.swap_blocks(one, other, torch.tensor(pairs))


def test_ids_must_be_within_the_smallest_layer(package):
    with pytest.raises(package.MetadataError, match="a source from 0 to 1"):
        package.copy_blocks([cache(0, 1, 2), cache(0, 1)], torch.tensor([[2, 0]]))


@pytest.mark.parametrize(
    "pairs",
    [torch.tensor([0, 1]), torch.tensor([[0, 1, 2]]), torch.tensor([[0, 1]], dtype=torch.int32)],
)
def test_pairs_of_another_shape_or_dtype_are_errors(package, pairs):
    with pytest.raises(package.MetadataError, match="src_to_dst is of"):
        package.swap_blocks(cache(0, 1), cache(0, 1), pairs)


def test_malformed_caches_are_errors(package):
    one, pairs = cache(0, 1), torch.tensor([[0, 1]])
    for other, message in (
        (one[0], "dst_kv_cache is of shape"),
        (one[..., :2], r"blocks of shape \(2, 3, 2\), expected \(2, 3, 5\)"),
        (one.float(), "of dtype torch.float32, expected torch.float16"),
        (one[:1].expand(2, -1, -1, -1, -1), "dst_kv_cache is expanded"),
        (one.to("meta"), "src_to_dst is on meta, expected on the CPU"),
    ):
        with pytest.raises(package.MetadataError, match=message):
            package.swap_blocks(one, other, pairs.to(other.device))
    with pytest.raises(TypeError, match="kv_caches is Tensor, expected a list"):
        package.copy_blocks(one, pairs)
    with pytest.raises(TypeError, match=r"kv_caches\[1\] is NoneType"):
        package.copy_blocks([one, None], pairs)


def test_no_pairs_and_no_layers(package):
    none = torch.zeros((0, 2), dtype=torch.int64)
    package.swap_blocks(cache(), cache(), none)
    package.copy_blocks([cache()], none)
    package.copy_blocks([], torch.tensor([[0, 1]]))
