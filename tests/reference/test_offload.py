"""Tests of copies to chunks in host memory (SPEC.md section 18)."""

from __future__ import annotations

import pytest
import torch


def _copied(package, source, target, blocks, chunks, index, *, to_host):
    lists = (blocks, chunks, [len(blocks)], [index])
    package.copy_offloaded_blocks(source, target, *lists, 2, 2, to_host)
    return target


@pytest.mark.spec("Example: 2 blocks a chunk, blocks [4, 0] of a request from its block 3 on, chun")
def test_what_was_stored_is_loaded(package):
    cache = torch.arange(10, dtype=torch.int8).view(5, 2)
    host = torch.full((3, 4), -1, dtype=torch.int8)
    _copied(package, cache, host, [4, 0], [1, 2], 3, to_host=True)
    assert host.tolist() == [[-1] * 4, [-1, -1, 8, 9], [0, 1, -1, -1]]
    loaded = torch.full((5, 2), -1, dtype=torch.int8)
    _copied(package, host, loaded, [2], [2], 4, to_host=False)
    assert loaded.tolist() == [[-1, -1], [-1, -1], [0, 1], [-1, -1], [-1, -1]]
