"""Run tests with one torch thread, as in a worker: more threads slow down small tensors."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
