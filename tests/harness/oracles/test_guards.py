"""New memory holds poison."""

from __future__ import annotations

import platform

import numpy as np
import pytest
import torch

from attnproof.harness.oracles.guards import FILLS, new_memory_filled


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc fills new memory")
@pytest.mark.parametrize("fill", FILLS)
def test_new_memory_holds_the_byte_unless_zeros_are_asked_for(fill):
    with new_memory_filled(fill):
        assert (np.empty(5_000, np.uint8) == fill).all()
        assert (np.empty(500_000, np.uint8) == fill).all()
        assert not np.zeros(5_000, np.uint8).any()
        assert not torch.zeros(5_000, dtype=torch.uint8).any()
