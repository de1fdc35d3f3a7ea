"""Slots of the tokens that sparse attention chose (vllm/.../mla/sparse_utils.py)."""

from typing import Annotated

import torch

from attnproof.define import Array, Int, operation

INT32 = torch.int32
Requests = Annotated[torch.Tensor, Array(shape=("N",), dtype=INT32, least=0, below="Q")]
Table = Annotated[torch.Tensor, Array(shape=("Q", "C"), dtype=INT32, least=0, below=2**20)]
Chosen = Annotated[torch.Tensor, Array(shape=("N", "K"), dtype=INT32, least=-1)]
Tokens = Annotated[int, Int(least=1, below=257)]


@operation
def triton_convert_req_index_to_global_index(
    req_id: Requests, block_table: Table, token_indices: Chosen, block_size: Tokens = 64
) -> Annotated[torch.Tensor, Array(shape=("N", "K"), dtype=INT32)]:
    """Return the slot of each chosen position, -1 for -1 and behind the table's columns."""
    slots = torch.full(token_indices.shape, -1, dtype=INT32)
    table, positions = block_table.tolist(), token_indices.tolist()
    for row, request in enumerate(req_id.tolist()):
        for column, position in enumerate(positions[row]):
            block, offset = divmod(position, block_size)
            if position >= 0 and block < len(table[request]):
                slots[row, column] = table[request][block] * block_size + offset
    return slots
