"""Checks of the input of a KV-cache manager (SPEC.md section 16)."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, lcm

from ..interface.errors import MetadataError
from ..interface.kv_manager import CacheBlocks, CacheGroup, CacheRequest
from .common import check_bool, check_int

_CLASS = "KVCacheManager"
_ALLOCATE = f"{_CLASS}.allocate_slots"


def check_manager(
    num_blocks: int,
    groups: Sequence[CacheGroup],
    max_model_len: int,
    enable_caching: bool,
    num_hash_lookahead_tokens: int,
    watermark: float,
) -> None:
    """Require groups whose block sizes go together, and a pool with a block beside NULL."""
    check_int(_CLASS, "num_blocks", num_blocks, 2)
    check_int(_CLASS, "max_model_len", max_model_len, 1)
    check_bool(_CLASS, "enable_caching", enable_caching)
    check_int(_CLASS, "num_hash_lookahead_tokens", num_hash_lookahead_tokens, 0)
    if not 0 <= watermark <= 1:
        raise MetadataError(_CLASS, "watermark", watermark, "from 0 to 1")
    if not groups:
        raise MetadataError(_CLASS, "groups", "empty", "at least one group")
    for group in groups:
        _check_group(group)
    sizes = [group.block_size for group in groups]
    for group in groups:
        # Those of a full or mamba group would be hit inside their blocks too.
        if group.kind in ("full", "mamba") and group.block_size != gcd(*sizes):
            expected = f"{gcd(*sizes)}, the greatest common divisor"
            raise MetadataError(_CLASS, "block_size", group.block_size, expected)
        if group.kind == "chunked" and group.block_size != lcm(*sizes):
            expected = f"{lcm(*sizes)}, that of all groups"
            raise MetadataError(_CLASS, "block_size", group.block_size, expected)
    if sum(group.draft for group in groups) > 1:
        raise MetadataError(_CLASS, "draft", "True of two groups", "at most one group of a drafter")


def check_retention(groups: Sequence[CacheGroup], interval: int | None) -> None:
    """Require a multiple of all block sizes, and a group that keeps less for it."""
    if interval is None:
        return
    check_int(_CLASS, field := "retention_interval", interval, 0)
    alignment = lcm(*(group.block_size for group in groups))
    if interval % alignment:
        raise MetadataError(_CLASS, field, interval, f"a multiple of {alignment}")
    if interval and all(group.kind in ("full", "chunked") for group in groups):
        raise MetadataError(_CLASS, field, interval, "0 without windows and states")


def _check_group(group: CacheGroup) -> None:
    check_int(_CLASS, "block_size", group.block_size, 1)
    check_bool(_CLASS, "draft", group.draft)
    if group.kind not in ("full", "window", "chunked", "mamba"):
        raise MetadataError(_CLASS, "kind", repr(group.kind), "full, window, chunked or mamba")
    # A window of one token would publish no block: nothing is behind a query that it sees.
    smallest = {"window": 2, "chunked": group.block_size}.get(group.kind, 0)
    check_int(_CLASS, "window", group.window, smallest)
    if group.kind in ("full", "mamba") and group.window:
        raise MetadataError(_CLASS, "window", group.window, f"0 of a {group.kind} group")
    if group.kind == "chunked" and group.window % group.block_size:
        raise MetadataError(_CLASS, "window", group.window, "a multiple of the block size")
    if group.draft and group.kind not in ("full", "window"):
        raise MetadataError(_CLASS, "draft", True, f"False of a {group.kind} group")


def check_request(operation: str, request: CacheRequest, max_model_len: int) -> None:
    """Require a number of computed tokens, and at most `max_model_len` tokens."""
    check_int(operation, "num_computed_tokens", request.num_computed_tokens, 0)
    check_int(operation, field := "num_prompt_tokens", request.num_prompt_tokens, 0)
    if request.num_prompt_tokens > len(request.token_ids):
        expected = f"at most {len(request.token_ids)}, the tokens"
        raise MetadataError(operation, field, request.num_prompt_tokens, expected)
    check_int(operation, field := "num_in_flight_tokens", request.num_in_flight_tokens, 0)
    if request.num_in_flight_tokens > request.num_computed_tokens:
        expected = f"at most {request.num_computed_tokens}, the computed tokens"
        raise MetadataError(operation, field, request.num_in_flight_tokens, expected)
    if len(request.token_ids) > max_model_len:
        raise MetadataError(
            operation,
            "token_ids",
            f"of length {len(request.token_ids)}",
            f"at most {max_model_len}",
        )


def check_lookup(request: CacheRequest, bound: int | None, max_model_len: int) -> int:
    """Require a bound below the request's tokens; return it, without one the largest."""
    name, most = f"{_CLASS}.get_computed_blocks", len(request.token_ids) - 1
    check_request(name, request, max_model_len)
    if bound is None:
        return most
    check_int(name, field := "max_cache_hit_length", bound, 0)
    if bound > most:
        raise MetadataError(name, field, bound, f"at most {most}: one token is computed")
    return bound


def check_cached(
    request: CacheRequest, computed: int, max_model_len: int, capacity: int | None
) -> None:
    """Require computed tokens that the request counts as such, and that its blocks hold."""
    name = f"{_CLASS}.cache_blocks"
    check_request(name, request, max_model_len)
    check_int(name, field := "num_computed_tokens", computed, 0)
    if computed > request.num_computed_tokens:
        expected = f"at most {request.num_computed_tokens}, those of the request"
        raise MetadataError(name, field, computed, expected)
    if capacity is not None and computed > capacity:
        raise MetadataError(name, field, computed, f"at most {capacity}, which its blocks hold")


def check_ids(ids: Sequence[int], num_blocks: int) -> None:
    """Require ids of blocks of the pool, NULL not among them."""
    for block in ids:
        check_int(f"{_CLASS}.evict_blocks", "block_ids", block, 1)
        if block >= num_blocks:
            expected = f"1 to {num_blocks - 1}, blocks of the pool"
            raise MetadataError(f"{_CLASS}.evict_blocks", "block_ids", block, expected)


def check_new_tokens(
    request: CacheRequest, new: int, hits: int, lookahead: int, external: int, max_model_len: int
) -> None:
    """Require something to allocate or to adopt, within `max_model_len` tokens."""
    check_request(_ALLOCATE, request, max_model_len)
    check_int(_ALLOCATE, "num_new_tokens", new, 0)
    check_int(_ALLOCATE, "num_new_computed_tokens", hits, 0)
    check_int(_ALLOCATE, "num_lookahead_tokens", lookahead, 0)
    check_int(_ALLOCATE, "num_external_computed_tokens", external, 0)
    if not new and not hits and not external:
        raise MetadataError(_ALLOCATE, "num_new_tokens", 0, "at least 1 without hits to adopt")
    total = request.num_computed_tokens + hits + external + new
    if total > max_model_len:
        field = "the sum of computed, hit, external and new tokens"
        raise MetadataError(_ALLOCATE, field, total, f"at most {max_model_len}")


def check_hits(
    request: CacheRequest,
    hits: int,
    blocks: CacheBlocks | None,
    choices: Sequence[Sequence[Sequence[int]]],
    alignment: int,
    table_tokens: int | None,
) -> None:
    """Require hits that hold the request's tokens, of a request without blocks.

    `choices[group][i]` has the ids that block i of the hits may have; hits are a multiple of
    `alignment`. `table_tokens` is the number of tokens that the request's blocks have room for,
    None for a request without blocks.
    """
    computed = request.num_computed_tokens
    if computed > (table_tokens or 0):
        expected = f"at most {table_tokens or 0}, the tokens of its blocks"
        raise MetadataError(_ALLOCATE, "num_computed_tokens", computed, expected)
    ids = [] if blocks is None else list(blocks.get_block_ids())
    if table_tokens is not None and (hits or any(ids)):
        raise MetadataError(_ALLOCATE, "new_computed_blocks", ids, "none: the request has blocks")
    if not hits and not any(ids):
        return
    lengths = [len(each) for each in ids]
    if lengths != [len(each) for each in choices] or hits % alignment:
        raise MetadataError(_ALLOCATE, "new_computed_blocks", ids, f"blocks of {hits} tokens")
    for group, allowed in zip(ids, choices, strict=True):
        if any(block not in own for block, own in zip(group, allowed, strict=True)):
            expected = "cached blocks of the request's own tokens"
            raise MetadataError(_ALLOCATE, "new_computed_blocks", ids, expected)


def check_external(external: int, table_tokens: int | None) -> None:
    """Require external tokens of a request without blocks only."""
    if external and table_tokens is not None:
        field = "num_external_computed_tokens"
        raise MetadataError(_ALLOCATE, field, external, "0: the request has blocks")
