"""SPEC.md section 15: cached prefixes in a radix tree."""

from __future__ import annotations

import pytest
import torch

from attnproof.reference import MetadataError


def tokens(*ids):
    return torch.tensor(ids)


@pytest.mark.spec("Example: P = 2, tokens [1, 0, 1, 0, 1] get slots 0 to 3; [1, 0, 0, 0] matches")
def test_the_specifications_example(package):
    cache = package.RadixCache(2)
    assert cache.insert(tokens(1, 0, 1, 0, 1)) == 0
    assert cache.match_prefix(tokens(1, 0, 1, 0)).tolist() == [0, 1, 2, 3]
    assert cache.insert(tokens(1, 0, 0, 0)) == 2
    assert cache.match_prefix(tokens(1, 0, 0, 0)).tolist() == [0, 1, 7, 8]
    assert cache.lock(tokens(1, 0)) == 2
    assert (cache.evictable_size, cache.protected_size) == (4, 2)
    assert cache.evict(1).tolist() == [2, 3]
    assert cache.evict(9).tolist() == [7, 8]
    cache.unlock(0)
    assert cache.evict(1).tolist() == [0, 1]


def test_a_lock_that_is_not_held_is_refused(package):
    with pytest.raises(MetadataError, match="unlock"):
        package.RadixCache(1).unlock(0)
