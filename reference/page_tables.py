"""Page tables as CSR, the form that FlashInfer's kernels read (SPEC.md section 15)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import torch

from .definition.definition import operation
from .definition.roles import (
    Array,
    BlockSize,
    BlockTable,
    Int,
    Offsets,
    PoolRows,
    SeqLens,
    SlotPool,
)

__all__ = [
    "compute_flashinfer_kv_metadata",
    "create_flashinfer_kv_indices",
    "get_batch_indices_positions",
]


@operation(results=("kv_indptr", "kv_indices", "kv_last_page_len"), independent=True)
def compute_flashinfer_kv_metadata(
    seq_lens_cpu: Annotated[torch.Tensor, Array("sequence lengths", on_cpu=True)],
    block_table: BlockTable,
    page_size: BlockSize,
) -> tuple[
    Annotated[torch.Tensor, Array("numbers", ("R+1",))],
    Annotated[torch.Tensor, Array("numbers", ("?",))],
    Annotated[torch.Tensor, Array("numbers", ("R",))],
]:
    """Return the page table of a batch as CSR: `kv_indptr`, `kv_indices`, `kv_last_page_len`.

    `seq_lens_cpu` (R,) on the CPU, in tokens, and `block_table` (R, W) are int32 or int64;
    `page_size` is in tokens. All results are int32 on the table's device: `kv_indptr` (R+1,)
    in pages, `kv_indices` with the pages of all requests, `kv_last_page_len` (R,) in tokens,
    0 for an empty sequence and `page_size` for one that ends with a full page. Raise
    MetadataError for a sequence longer than its row. SPEC.md section 15.
    """
    table = block_table.tolist()
    kv_indptr, kv_indices, kv_last_page_len = [0], [], []
    for r, length in enumerate(seq_lens_cpu.tolist()):
        num_pages = -(-length // page_size)
        kv_indices.extend(table[r][:num_pages])
        kv_indptr.append(kv_indptr[r] + num_pages)
        kv_last_page_len.append(length - (num_pages - 1) * page_size if num_pages else 0)
    results = (kv_indptr, kv_indices, kv_last_page_len)
    indptr, indices, last_page_len = (
        torch.tensor(values, dtype=torch.int32, device=block_table.device) for values in results
    )
    return indptr, indices, last_page_len


@operation(results=("batch_indices", "positions"), independent=True)
def get_batch_indices_positions(
    append_indptr: Offsets, seq_lens: SeqLens, nnz: Annotated[int, Int(least="T")]
) -> tuple[
    Annotated[torch.Tensor, Array("request indices", ("nnz",))],
    Annotated[torch.Tensor, Array("positions", ("nnz",))],
]:
    """Return request and position of each token that is appended to the cache.

    `append_indptr` (R+1,) are the offsets of the appended tokens, `seq_lens` (R,) the lengths
    with them; int32 or int64 on one device. The results have `nnz` int32 each: -1 and 0
    behind the last appended token. Raise MetadataError for offsets that do not rise from 0, a
    sequence shorter than what is appended to it, and fewer entries than tokens. SPEC.md
    section 15.
    """
    offsets, lengths = append_indptr.tolist(), seq_lens.tolist()
    batch_indices, positions = [-1] * nnz, [0] * nnz
    for r in range(len(lengths)):
        for i in range(offsets[r], offsets[r + 1]):
            batch_indices[i] = r
            positions[i] = lengths[r] - (offsets[r + 1] - i)
    device = append_indptr.device
    return (
        torch.tensor(batch_indices, dtype=torch.int32, device=device),
        torch.tensor(positions, dtype=torch.int32, device=device),
    )


def _follows_lengths(
    page_kernel_lens: torch.Tensor, kv_indptr: torch.Tensor, kv_indices: torch.Tensor
) -> Iterator[tuple[str, Any, str]]:
    yield "kv_indptr", kv_indptr[:1] != 0, "0 at index 0"
    expected = torch.cat([kv_indptr.new_zeros(1), page_kernel_lens.cumsum(0)])
    yield "kv_indptr", kv_indptr != expected, "sums of page_kernel_lens"
    end = int(kv_indptr[-1])
    yield "kv_indices", kv_indices.shape[0] < end, f"at least {end} entries"


def _inside_rows(
    req_to_token: torch.Tensor,
    page_kernel_lens: torch.Tensor,
    kv_start_idx: torch.Tensor | None,
    entry_page_size: int,
) -> Iterator[tuple[str, Any, str]]:
    capacity = req_to_token.shape[1] * entry_page_size
    end = page_kernel_lens.long() + (0 if kv_start_idx is None else kv_start_idx)
    expected = f"at most {capacity} positions of a row, its first ones included"
    yield "page_kernel_lens", end > capacity, expected


@operation(requires=(_follows_lengths, _inside_rows))
def create_flashinfer_kv_indices(
    req_to_token: SlotPool,
    req_pool_indices: PoolRows,
    page_kernel_lens: Annotated[torch.Tensor, Array("numbers", ("R",), least=0)],
    kv_indptr: Annotated[torch.Tensor, Array("numbers", ("R+1",))],
    kv_start_idx: Annotated[torch.Tensor, Array("numbers", ("R",), least=0)] | None,
    kv_indices: Annotated[torch.Tensor, Array("numbers", ("N",), written=True)],
    *,
    entry_page_size: BlockSize = 1,
) -> None:
    """Write the slots of the positions that each request sees to `kv_indices`.

    `req_to_token` (P, W) holds a slot for each position of a request, or with
    `entry_page_size` above 1 a page for each so many positions. Request r has row
    `req_pool_indices[r]`; it sees `page_kernel_lens[r]` positions from `kv_start_idx[r]` on
    (default 0), written from `kv_indptr[r]` on. The vectors are (R,) and `kv_indptr` (R+1,),
    all int32 or int64 on one device; `kv_indices` keeps what it holds behind
    `kv_indptr[R]`. Raise MetadataError for rows or positions outside the table, and offsets
    that are not the sums of the lengths. SPEC.md section 15.
    """
    table, rows, offsets = req_to_token.tolist(), req_pool_indices.tolist(), kv_indptr.tolist()
    starts = [0] * len(rows) if kv_start_idx is None else kv_start_idx.tolist()
    slots = []
    for r, length in enumerate(page_kernel_lens.tolist()):
        for position in range(starts[r], starts[r] + length):
            entry = table[rows[r]][position // entry_page_size]
            slots.append(entry * entry_page_size + position % entry_page_size)
    kv_indices[: offsets[-1]] = torch.tensor(slots, dtype=kv_indices.dtype)
