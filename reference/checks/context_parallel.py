"""Checks of the operations of context parallelism (SPEC.md section 10).

No device tensor is read, so no check synchronises.
"""

from __future__ import annotations

import torch

from ..interface.errors import MetadataError
from .common import check_cpu, check_int, check_tensor


def check_prefill_chunks(seq_lens: torch.Tensor, workspace_size: int, request_offset: int) -> None:
    """Require valid arguments of `split_prefill_chunks`."""
    operation = "split_prefill_chunks"
    check_tensor(operation, "seq_lens_cpu", seq_lens, 1)
    check_cpu(operation, "seq_lens_cpu", seq_lens)
    check_int(operation, "workspace_size", workspace_size, 1)
    check_int(operation, "request_offset", request_offset, 0)
    for row, length in enumerate(seq_lens.tolist()):
        if not 0 <= length <= workspace_size:
            expected = f"0 to workspace_size = {workspace_size}"
            raise MetadataError(operation, f"seq_lens_cpu[{row}]", length, expected)
