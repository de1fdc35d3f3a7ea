"""Page tables as CSR, the form that FlashInfer's kernels read (SPEC.md section 15)."""

from __future__ import annotations

import torch

from .checking import check_call, checks
from .dispatch import on_device, staging, upload
from .host import page_tables as loops
from .host.vectors import optional_vector, vector

__all__ = [
    "compute_flashinfer_kv_metadata",
    "create_flashinfer_kv_indices",
    "get_batch_indices_positions",
]

_checked = checks.follow(globals())


def compute_flashinfer_kv_metadata(
    seq_lens_cpu: torch.Tensor, block_table: torch.Tensor, page_size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the page table of a batch as CSR: `kv_indptr`, `kv_indices`, `kv_last_page_len`.

    Results and errors as in `reference`. On a device: one asynchronous copy of offsets and
    lengths, one kernel, no sync. SPEC.md section 15.
    """
    if _checked:
        check_call("compute_flashinfer_kv_metadata", seq_lens_cpu, block_table, page_size)
    rows, device = seq_lens_cpu.shape[0], block_table.device
    staged = staging(2 * rows + 1, torch.int32, device)
    total = loops.count_pages(rows, *vector(seq_lens_cpu), page_size, staged.data_ptr())
    sent = upload(staged, device)
    indptr, last_page_len = sent[: rows + 1], sent[rows + 1 :]
    indices = torch.empty(total, dtype=torch.int32, device=device)
    if total:
        _gather(block_table, None, None, indptr, indices, 1)
    return indptr, indices, last_page_len


def get_batch_indices_positions(
    append_indptr: torch.Tensor, seq_lens: torch.Tensor, nnz: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return request and position of each token that is appended to the cache.

    Results and errors as in `reference`. On a device one kernel, no sync. SPEC.md section 15.
    """
    if _checked:
        check_call("get_batch_indices_positions", append_indptr, seq_lens, nnz)
    out = torch.empty((2, nnz), dtype=torch.int32, device=append_indptr.device)
    if on_device(append_indptr):
        from .kernels.append_positions import write_append_positions

        write_append_positions(append_indptr, seq_lens, out)
    else:
        vectors = *vector(append_indptr), *vector(seq_lens)
        loops.append_positions(seq_lens.shape[0], *vectors, nnz, out.data_ptr())
    return out[0], out[1]


def create_flashinfer_kv_indices(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    page_kernel_lens: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_start_idx: torch.Tensor | None,
    kv_indices: torch.Tensor,
    *,
    entry_page_size: int = 1,
) -> None:
    """Write the slots of the positions that each request sees to `kv_indices`.

    Result and errors as in `reference`; without checks the lengths are those that
    `kv_indptr` says. On a device one kernel, no sync. SPEC.md section 15.
    """
    if _checked:
        check_call("create_flashinfer_kv_indices", **locals())
    _gather(req_to_token, req_pool_indices, kv_start_idx, kv_indptr, kv_indices, entry_page_size)


def _gather(
    table: torch.Tensor,
    pool: torch.Tensor | None,
    starts: torch.Tensor | None,
    indptr: torch.Tensor,
    out: torch.Tensor,
    page_size: int,
) -> None:
    """Write the entries of each request to `out`, from `indptr[r]` on."""
    if on_device(out):
        from .kernels.page_gather import gather_pages

        gather_pages(table, pool, starts, indptr, out, page_size)
        return
    row_stride, column_stride = table.stride()
    loops.gather(
        indptr.shape[0] - 1,
        *optional_vector(pool),
        *optional_vector(starts),
        *vector(indptr),
        table.data_ptr(),
        row_stride,
        column_stride,
        table.dtype is torch.int64,
        page_size,
        *vector(out),
    )
