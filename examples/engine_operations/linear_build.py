"""Metadata of linear attention (vllm/v1/attention/backends/linear_attn.py), as a function."""

from collections.abc import Iterator
from typing import Annotated

import torch

from attnproof.define import Array, BlockTable, Offsets, operation

States = Annotated[torch.Tensor, Array("block table", ("R",), may_alias=True)]


def has_a_column(block_table: torch.Tensor) -> Iterator[tuple[str, bool, str]]:
    """Require a column: each row's state is in its first block."""
    yield "block_table", block_table.shape[1] == 0, "a column at least"


@operation(
    requires=(has_a_column,),
    results=("num_decodes", "num_decode_tokens", "num_prefills", "num_prefill_tokens", "states"),
)
def linear_build(
    query_start_loc: Offsets, block_table: BlockTable
) -> tuple[int, int, int, int, States]:
    """Return rows and tokens of the decodes and of the prefills, and each row's state.

    Decodes are the rows before the first one with more than one query token.
    """
    offsets = query_start_loc.tolist()
    rows = len(offsets) - 1
    decodes = rows
    for row in reversed(range(rows)):
        if offsets[row + 1] - offsets[row] > 1:
            decodes = row
    decode_tokens = offsets[decodes]
    states = torch.stack([*[blocks[0] for blocks in block_table], block_table.new_zeros(())])[:-1]
    return decodes, decode_tokens, rows - decodes, offsets[-1] - decode_tokens, states
