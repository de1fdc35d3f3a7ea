"""Compute the programs of the causal convolution.

Tensors are passed as addresses. Offsets and numbers of programs are int64 if `wide`,
otherwise int32.
"""

from __future__ import annotations

from .addresses import element, int32_at, int64_at
from .compiled import compiled, entry


@entry
def count_programs(length: int, offsets: int, wide: bool, block: int) -> int:
    """Return the number of programs of all requests; -1 if the `length` offsets are malformed."""
    if length == 0 or element(offsets, 0, wide) != 0:
        return -1
    total = start = 0
    for r in range(1, length):
        end = element(offsets, r, wide)
        if end < start:
            return -1
        total += programs(end - start, block)
        start = end
    return total


@entry
def fill_programs(
    num_reqs: int,
    offsets: int,
    wide: bool,
    block: int,
    nums: int,
    mlist: int,
    offsetlist: int,
    total: int,
) -> None:
    """Write the programs of each request, and the request and number of each program.

    `nums` gets the programs per request, `mlist` the request of each program and
    `offsetlist` its number within the request.
    """
    requests, numbers = int64_at(mlist, total), int32_at(offsetlist, total)
    wide_nums, narrow_nums = int64_at(nums, num_reqs), int32_at(nums, num_reqs)
    first = start = 0
    for r in range(num_reqs):
        end = element(offsets, r + 1, wide)
        count = programs(end - start, block)
        start = end
        if wide:
            wide_nums[r] = count
        else:
            narrow_nums[r] = count
        for i in range(count):
            requests[first + i] = r
            numbers[first + i] = i
        first += count


@entry
def fill_first(num_reqs: int, offsets: int, wide: bool, block: int, first: int) -> None:
    """Write the first program of each request, then the number of programs."""
    programs_before = int64_at(first, num_reqs + 1)
    programs_before[0] = start = 0
    for r in range(num_reqs):
        end = element(offsets, r + 1, wide)
        programs_before[r + 1] = programs_before[r] + programs(end - start, block)
        start = end


@entry
def fill_pointers(
    mlist: int, offsetlist: int, total: int, batch_ptr: int, chunk_ptr: int, length: int
) -> None:
    """Copy the programs to both pointers, `length` int32 each; fill the rest with -1."""
    requests, numbers = int64_at(mlist, total), int32_at(offsetlist, total)
    batch, chunk = int32_at(batch_ptr, length), int32_at(chunk_ptr, length)
    for i in range(total):
        batch[i] = requests[i]
        chunk[i] = numbers[i]
    for i in range(total, length):
        batch[i] = -1
        chunk[i] = -1


@compiled
def programs(tokens: int, block: int) -> int:
    """Return the number of programs for `tokens` tokens of one request."""
    return (tokens + block - 1) // block
