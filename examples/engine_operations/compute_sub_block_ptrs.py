"""Addresses of the parts of offloaded chunks (vllm/v1/kv_offload/cpu/gpu_worker.py).

The engine's function takes a tensor; here its address and its sizes are numbers.
"""

from collections.abc import Iterator
from typing import Annotated

import torch

from attnproof.define import Array, Int, operation

BlockIds = Annotated[torch.Tensor, Array(shape=("C",), least=0, below=2**31 - 1)]
Addresses = Annotated[torch.Tensor, Array(shape=("N",), dtype=torch.int64, written=True)]
Factor = Annotated[int, Int(least=1, below=65)]
Address = Annotated[int, Int(below=2**47)]
Bytes = Annotated[int, Int(below=2**31)]


def fits(
    block_ids: torch.Tensor, factor: int, output: torch.Tensor, skip_count: int
) -> Iterator[tuple[str, bool, str]]:
    """Require a part for each address, and fewer skipped parts than a chunk has."""
    most = len(block_ids) * factor - skip_count
    yield "skip_count", skip_count >= factor, f"below {factor}"
    yield "output", len(output) > max(0, most), f"at most {most} addresses"


@operation(requires=(fits,))
def compute_sub_block_ptrs(
    block_ids: BlockIds,
    factor: Factor,
    output: Addresses,
    base: Address,
    row_stride: Bytes,
    part_bytes: Bytes,
    skip_count: int = 0,
) -> None:
    """Write the address of each part: chunks have `factor` parts, the first ones are skipped."""
    ids = block_ids.tolist()
    for place in range(len(output)):
        chunk, part = divmod(place + skip_count, factor)
        output[place] = base + ids[chunk] * row_stride + part * part_bytes
