"""The scan for the first prefill."""

from __future__ import annotations

from .arrays import Array
from .compiled import compiled


@compiled
def decreases(offsets: Array) -> bool:
    """Whether offsets do not start at 0 or decrease somewhere."""
    if offsets.shape[0] == 0 or offsets[0] != 0:
        return True
    for r in range(1, offsets.shape[0]):  # noqa: SIM110
        if offsets[r] < offsets[r - 1]:
            return True
    return False


@compiled
def leading_decodes(offsets: Array, threshold: int, uniform: bool) -> tuple[int, int]:
    """Number of leading decodes and of their tokens; (-1, 0) for malformed offsets.

    Uniform: the run that equals the first request, and rows of length 0 behind it if
    nothing else follows.
    """
    num_reqs = offsets.shape[0] - 1
    if offsets[0] != 0:
        return -1, 0
    first_len = offsets[1] - offsets[0] if num_reqs > 0 else 0
    num_decodes = -1
    last_nonempty = -1
    for r in range(num_reqs):
        query_len = offsets[r + 1] - offsets[r]
        if query_len < 0:
            return -1, 0
        if query_len > 0:
            last_nonempty = r
        is_decode = query_len <= threshold and (not uniform or query_len == first_len)
        if num_decodes < 0 and not is_decode:
            num_decodes = r
    if num_decodes < 0 or (uniform and num_decodes > 0 and last_nonempty < num_decodes):
        num_decodes = num_reqs
    return num_decodes, int(offsets[num_decodes])
