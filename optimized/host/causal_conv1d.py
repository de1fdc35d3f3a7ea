"""Programs of the causal convolution, request by request."""

from __future__ import annotations

from .arrays import Array
from .compiled import compiled


@compiled
def count_programs(offsets: Array, block: int, nums: Array, first: Array) -> int:
    """Write each request's number of programs and return their sum; -1 for malformed offsets.

    `first` (R+1) gets the running sum, the first program of each request, unless empty.
    """
    if offsets.shape[0] == 0 or offsets[0] != 0:
        return -1
    total = 0
    if first.shape[0]:
        first[0] = 0
    for r in range(nums.shape[0]):
        query_len = offsets[r + 1] - offsets[r]
        if query_len < 0:
            return -1
        programs = (query_len + block - 1) // block
        nums[r] = programs
        total += programs
        if first.shape[0]:
            first[r + 1] = total
    return int(total)


@compiled
def fill_programs(nums: Array, mlist: Array, offsetlist: Array) -> None:
    """Write each program's request and its number within the request."""
    start = 0
    for r in range(nums.shape[0]):
        end = start + nums[r]
        requests, numbers = mlist[start:end], offsetlist[start:end]
        for i in range(end - start):  # indexed from 0, so that the loop vectorises
            requests[i] = r
            numbers[i] = i
        start = end


@compiled
def fill_pointers(mlist: Array, offsetlist: Array, pointers: Array) -> None:
    """Copy the programs into the rows of `pointers`, -1 behind them."""
    total = mlist.shape[0]
    for i in range(total):
        pointers[0, i] = mlist[i]
        pointers[1, i] = offsetlist[i]
    for i in range(total, pointers.shape[1]):
        pointers[0, i] = -1
        pointers[1, i] = -1
