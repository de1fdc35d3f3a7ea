"""The engine's block table, whose slots are computed on the host and then sent."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch


class BlockTable:
    def __init__(
        self,
        block_size,
        max_num_reqs,
        max_num_blocks_per_req,
        max_num_batched_tokens,
        pin_memory,
        device,
        kernel_block_size,
    ):
        assert kernel_block_size == block_size
        self.block_size = block_size
        self._rows = np.zeros((max_num_reqs, max_num_blocks_per_req), np.int32)
        self._slots = np.zeros(max_num_batched_tokens, np.int64)
        self.slot_mapping = SimpleNamespace(gpu=torch.zeros(max_num_batched_tokens).long())

    def get_numpy_array(self):
        return self._rows

    def compute_slot_mapping(self, req_indices, positions):
        blocks = self._rows[req_indices, positions // self.block_size]
        self._slots[: len(blocks)] = blocks * self.block_size + positions % self.block_size

    def commit_slot_mapping(self, num_tokens):
        self.slot_mapping.gpu[:num_tokens] = torch.from_numpy(self._slots[:num_tokens])
