"""Tests run as a worker does: tensors are small here, and more threads get in each other's way."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
