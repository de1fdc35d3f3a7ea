"""Checks that `PersistentBatch` runs before a row or buffer changes (SPEC.md section 7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch

from ..interface.errors import MetadataError
from .common import check_int
from .slots import check_block

MAX_INT32 = 2**31 - 1


class BatchState(Protocol):
    """Fields of a `PersistentBatch` that the checks read."""

    max_num_reqs: int
    max_num_tokens: int
    max_num_blocks: int
    block_size: int
    req_ids: list[Any]
    num_blocks: torch.Tensor
    num_computed_tokens: torch.Tensor


def check_batch_sizes(
    max_num_reqs: int, max_num_tokens: int, max_num_blocks: int, block_size: int
) -> None:
    """Require sizes of at least 1, and a longest sequence whose length fits int32."""
    operation = "PersistentBatch"
    check_int(operation, "max_num_reqs", max_num_reqs, 1)
    check_int(operation, "max_num_tokens", max_num_tokens, 1)
    check_int(operation, "max_num_blocks", max_num_blocks, 1)
    check_int(operation, "block_size", block_size, 1)
    if max_num_blocks * block_size > MAX_INT32:
        expected = f"at most {MAX_INT32 // block_size}: lengths are int32"
        raise MetadataError(operation, "max_num_blocks", max_num_blocks, expected)


def batch_device(device: str | torch.device) -> torch.device:
    """Return the device of a name or device (MetadataError for a name unknown to torch)."""
    if not isinstance(device, str | torch.device):
        got = type(device).__name__
        raise TypeError(f"PersistentBatch: device is {got}, expected a string or torch.device")
    try:
        return torch.device(device)
    except RuntimeError:
        raise MetadataError("PersistentBatch", "device", device, "a device of torch") from None


def check_new_request(
    operation: str,
    batch: BatchState,
    req_id: object,
    block_ids: Sequence[int],
    num_computed_tokens: int,
) -> None:
    """Require an id that is not in the batch, a free row, and blocks for its cached tokens."""
    if req_id is None:
        raise MetadataError(operation, "req_id", None, "an id; None stands for a hole")
    hash(req_id)  # TypeError if it is not hashable
    if req_id in batch.req_ids:
        raise MetadataError(operation, "req_id", repr(req_id), "an id that has no row yet")
    check_block_ids(operation, block_ids, batch.max_num_blocks)
    check_int(operation, "num_computed_tokens", num_computed_tokens, 0)
    held = len(block_ids) * batch.block_size
    if num_computed_tokens > held:
        expected = f"at most the {held} tokens of its blocks"
        raise MetadataError(operation, "num_computed_tokens", num_computed_tokens, expected)
    if None not in batch.req_ids and len(batch.req_ids) == batch.max_num_reqs:
        expected = f"fewer requests than max_num_reqs = {batch.max_num_reqs}"
        raise MetadataError(operation, "num_reqs", batch.max_num_reqs, expected)


def check_block_ids(operation: str, block_ids: Sequence[int], room: int) -> None:
    """Require at most `room` block ids, Python or numpy integers, that fit int32."""
    if not isinstance(block_ids, list | tuple):
        got = type(block_ids).__name__
        raise TypeError(f"{operation}: block_ids is {got}, expected a list of ints")
    plain = {int}.issuperset(map(type, block_ids))
    if not plain or (block_ids and (min(block_ids) < 0 or max(block_ids) > MAX_INT32)):
        for index, block in enumerate(block_ids):
            if check_block(operation, f"block_ids[{index}]", block) > MAX_INT32:
                raise MetadataError(operation, f"block_ids[{index}]", block, "an id below 2**31")
    if len(block_ids) > room:
        expected = f"at most {room}, the free columns of its row"
        raise MetadataError(operation, "block_ids", f"{len(block_ids)} blocks", expected)


def check_known(operation: str, req_ids: Iterable[object], req_id: object) -> None:
    """Require the id of a request that has a row."""
    hash(req_id)  # TypeError if it is not hashable
    if req_id is None or req_id not in req_ids:
        raise MetadataError(operation, "req_id", repr(req_id), "the id of a request with a row")


def check_row(operation: str, field: str, row: int, req_ids: Sequence[object]) -> None:
    """Require the index of a row that holds a request."""
    check_int(operation, field, row, 0)
    if row >= len(req_ids):
        raise MetadataError(operation, field, row, f"below {len(req_ids)}, the rows in use")
    if req_ids[row] is None:
        raise MetadataError(operation, field, f"{row}, a hole", "a row that holds a request")


def check_schedule(
    operation: str, batch: BatchState, num_scheduled_tokens: Mapping[Any, int]
) -> list[int]:
    """Return the query tokens of each row, 0 for a hole.

    Require an entry for each request, no other entries, and blocks that cover the tokens.
    """
    if not isinstance(num_scheduled_tokens, Mapping):
        got = type(num_scheduled_tokens).__name__
        raise TypeError(f"{operation}: num_scheduled_tokens is {got}, expected a dict")
    field = "num_scheduled_tokens"
    for req_id in num_scheduled_tokens:
        if req_id is None or req_id not in batch.req_ids:
            raise MetadataError(operation, field, f"set for {req_id!r}", "only ids with a row")
    query_lens = []
    for row, req_id in enumerate(batch.req_ids):
        if req_id is None:
            query_lens.append(0)
            continue
        if req_id not in num_scheduled_tokens:
            raise MetadataError(operation, field, "missing", f"an entry for request {req_id!r}")
        query_len = num_scheduled_tokens[req_id]
        check_int(operation, field, query_len, 0)
        needed = -(-(int(batch.num_computed_tokens[row]) + query_len) // batch.block_size)
        if needed > int(batch.num_blocks[row]):
            got, expected = int(batch.num_blocks[row]), f"at least {needed} for its tokens"
            raise MetadataError(operation, f"num_blocks[{row}]", got, expected)
        query_lens.append(query_len)
    return query_lens


def check_rejected(
    operation: str, batch: BatchState, num_rejected_tokens: Mapping[Any, int]
) -> list[tuple[int, int]]:
    """Return row and rejected tokens of each given request, which must have computed them."""
    field = "num_rejected_tokens"
    if not isinstance(num_rejected_tokens, Mapping):
        got = type(num_rejected_tokens).__name__
        raise TypeError(f"{operation}: {field} is {got}, expected a dict")
    rows = []
    for req_id, rejected in num_rejected_tokens.items():
        if req_id is None or req_id not in batch.req_ids:
            raise MetadataError(operation, field, f"set for {req_id!r}", "only ids with a row")
        row = batch.req_ids.index(req_id)
        check_int(operation, field, rejected, 0)
        computed = int(batch.num_computed_tokens[row])
        if rejected > computed:
            expected = f"at most the {computed} computed tokens of request {req_id!r}"
            raise MetadataError(operation, field, rejected, expected)
        rows.append((row, rejected))
    return rows


def check_step(
    operation: str,
    batch: BatchState,
    num_scheduled_tokens: Mapping[Any, int],
    num_padded_reqs: int | None,
    num_padded_tokens: int | None,
) -> list[int]:
    """Return the query tokens of each row.

    Require a batch without holes that fits its buffers, padding included.
    """
    if None in batch.req_ids:
        got = f"None at row {batch.req_ids.index(None)}"
        raise MetadataError(operation, "req_ids", got, "no hole: condense() first")
    query_lens = check_schedule(operation, batch, num_scheduled_tokens)
    tokens, room = sum(query_lens), batch.max_num_tokens
    if tokens > room:
        got, expected = f"{tokens} tokens in all", f"at most max_num_tokens = {room}"
        raise MetadataError(operation, "num_scheduled_tokens", got, expected)
    for field, count, least, most in (
        ("num_padded_reqs", num_padded_reqs, len(query_lens), batch.max_num_reqs),
        ("num_padded_tokens", num_padded_tokens, tokens, room),
    ):
        if count is not None:
            check_int(operation, field, count, least)
            if count > most:
                raise MetadataError(operation, field, count, f"at most {most}")
    return query_lens


def check_dummy(operation: str, batch: BatchState, num_reqs: int, num_tokens: int) -> None:
    """Require rows and tokens that fit the buffers, and a longest request that fits its row."""
    for field, count, most in (
        ("num_reqs", num_reqs, batch.max_num_reqs),
        ("num_tokens", num_tokens, batch.max_num_tokens),
    ):
        check_int(operation, field, count, 0)
        if count > most:
            raise MetadataError(operation, field, count, f"at most {most}")
    room = num_reqs * batch.max_num_blocks * batch.block_size
    if num_tokens > room:
        expected = f"at most {room}, what the rows of {num_reqs} requests hold"
        raise MetadataError(operation, "num_tokens", num_tokens, expected)
