"""Convert the positions that sparse attention selects to rows of a cache."""

from __future__ import annotations

from .addresses import element, set_element
from .compiled import entry


@entry
def convert(
    tokens: int,
    selected: int,
    requests: int,
    requests_stride: int,
    table: int,
    row_stride: int,
    column_stride: int,
    width: int,
    positions: int,
    token_stride: int,
    position_stride: int,
    block_size: int,
    block_stride_rows: int,
    size: int,
    rank: int,
    interleave: int,
    out: int,
) -> None:
    """Write the row of each position to `out`, dense int32, -1 where the rank has none.

    Tensors are int32: an address and strides in elements.
    """
    for token in range(tokens):
        request = element(requests, token * requests_stride, False)
        for i in range(selected):
            position = element(positions, token * token_stride + i * position_stride, False)
            turn = position // interleave
            row = -1
            if position >= 0 and turn % size == rank:
                local = turn // size * interleave + position % interleave
                column = local // block_size
                if column < width:
                    at = request * row_stride + column * column_stride
                    block = element(table, at, False)
                    row = block * block_stride_rows + local % block_size
            set_element(out, token * selected + i, False, row)
