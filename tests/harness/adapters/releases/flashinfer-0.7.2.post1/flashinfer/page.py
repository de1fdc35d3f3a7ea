"""Stand-in: the kernel is imported when the function is called."""

from .api_logging import flashinfer_api


@flashinfer_api(trace=None)
def other():
    pass


@flashinfer_api
def get_batch_indices_positions(append_indptr, seq_lens, nnz):
    from .triton.page import get_batch_indices_positions_kernel

    return get_batch_indices_positions_kernel(append_indptr, seq_lens, nnz)
