"""Stand-in: what the kernel gets."""


def get_batch_indices_positions_kernel(append_indptr, seq_lens, nnz):
    assert append_indptr.is_contiguous()
    return append_indptr, nnz
