"""Stand-in: the pool is written in torch, or by a kernel."""

from sglang.kernels.ops.memory.common import write_req_to_token_pool_triton
from sglang.srt.runtime_context import attention_backends
from sglang.srt.utils import is_pin_memory_available, support_triton


def get_last_loc_torch(req_to_token, rows, prefix_lens):
    return req_to_token[rows, prefix_lens - 1]


def write_cache_indices(
    out, rows, rows_cpu, pre, pre_cpu, seq, seq_cpu, ext, ext_cpu, prefixes, pool
):
    assert is_pin_memory_available(pool.device) is False
    if support_triton(attention_backends()[0]):
        write_req_to_token_pool_triton[(len(rows),)](pool.req_to_token, prefixes)
        return
    for row, first, last, prefix in zip(rows_cpu, pre_cpu, seq_cpu, prefixes, strict=True):
        pool.write((row, slice(0, first)), prefix)
        pool.write((row, slice(first, last)), out[: last - first])
