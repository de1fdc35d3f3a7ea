"""Context of latent attention that all ranks gathered (SPEC.md section 22).

Both packages share it: it is one gather of rows a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch

from ..definition.definition import operation
from ..definition.roles import Array, Int, Object, of_shapes

_Numbers = Annotated[list[int], Object()]


@of_shapes
def _is_gathered(
    allgatered_kv_c_normed: torch.Tensor,
    padded_local_chunk_seq_lens_lst: list[int],
    local_context_lens_allranks: list[list[int]],
    local_starts: list[int],
    sum_seq_len: int,
    max_seq_len: int,
    toks: int,
) -> Iterator[tuple[str, bool, str]]:
    rows = len(padded_local_chunk_seq_lens_lst)
    yield "local_starts", len(local_starts) != rows, f"one of each of {rows} requests"
    lens = local_context_lens_allranks
    yield "local_context_lens_allranks", len(lens) != rows, f"those of {rows} requests"
    ranks = {len(each) for each in lens}
    yield "local_context_lens_allranks", len(ranks) > 1, "as many ranks of each request"
    for name, values in (
        ("padded_local_chunk_seq_lens_lst", padded_local_chunk_seq_lens_lst),
        ("local_starts", local_starts),
        ("local_context_lens_allranks", [n for each in lens for n in each]),
    ):
        yield name, min(values, default=0) < 0, "numbers of at least 0"
    total = sum(padded_local_chunk_seq_lens_lst)
    yield "toks", toks < total, f"at least {total} rows of a rank"
    gathered = toks * max(ranks, default=0)
    yield "allgatered_kv_c_normed", len(allgatered_kv_c_normed) < gathered, f"{gathered} rows"
    chunk = zip(lens, local_starts, padded_local_chunk_seq_lens_lst, strict=True)
    counts = [sum(_num_rows(n, first, most) for n in each) for each, first, most in chunk]
    yield "sum_seq_len", sum_seq_len != sum(counts), f"{sum(counts)} rows"
    yield "max_seq_len", max_seq_len != max(counts, default=0), f"{max(counts, default=0)} rows"


def _num_rows(length: int, first: int, most: int) -> int:
    """Return the rows of a chunk from `first` on, of the `length` that a rank holds."""
    return min(max(length - first, 0), most)


@operation(results=("kv_c_normed", "k_pe"), requires=(_is_gathered,))
def reorg_kvcache(
    allgatered_kv_c_normed: Annotated[torch.Tensor, Array(shape=("G", "D"), dtype=torch.int32)],
    allgatered_k_pe: Annotated[torch.Tensor, Array(shape=("G", "E"), dtype=torch.int32)],
    padded_local_chunk_seq_lens_lst: _Numbers,
    local_context_lens_allranks: Annotated[list[list[int]], Object()],
    local_starts: _Numbers,
    sum_seq_len: Annotated[int, Int()],
    max_seq_len: Annotated[int, Int()],
    toks: Annotated[int, Int()],
) -> tuple[
    Annotated[torch.Tensor, Array(shape=("?", "D"), dtype=torch.int32)],
    Annotated[torch.Tensor, Array(shape=("?", "E"), dtype=torch.int32)],
]:
    """Return a chunk of context by request, of the rows that all ranks gathered.

    `allgatered_kv_c_normed` (G, D) and `allgatered_k_pe` (G, E), int32 here, have `toks` rows of
    each rank in turn. Those of a rank are `padded_local_chunk_seq_lens_lst` rows of each request,
    from row `local_starts` on of the `local_context_lens_allranks[request][rank]` rows that the
    rank holds of its context; behind these they are padding. Return both without padding, by
    request, then by rank: `sum_seq_len` rows, at most `max_seq_len` of a request. Raise
    MetadataError for lists of other lengths, negative numbers and fewer rows. SPEC.md section 22.
    """
    del sum_seq_len, max_seq_len
    rows: list[int] = []
    first = 0
    for request, padded in enumerate(padded_local_chunk_seq_lens_lst):
        for rank, length in enumerate(local_context_lens_allranks[request]):
            count = _num_rows(length, local_starts[request], padded)
            rows += range(rank * toks + first, rank * toks + first + count)
        first += padded
    return allgatered_kv_c_normed[rows], allgatered_k_pe[rows]
