"""Types of the parameters of a case, with the ranges that a case file may have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from attnproof.harness.model.case import Batch, Count

MOST_STEPS = 1000
"""Maximum number of steps of a sequence."""
MOST_ELEMENTS = 2**28
"""Maximum number of elements of a tensor that a case describes."""
_most_elements = ContextVar("most elements", default=MOST_ELEMENTS)
FAR_BYTES = 2**26
"""Maximum size of the blocks of a far cache (`cases.memory.far_memory`)."""

Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Few = Annotated[int, Meta(ge=0, le=1024)]
"""Number of things that are made one by one, such as heads or spare rows."""
Some = Annotated[int, Meta(ge=1, le=1024)]
Tokens = Annotated[int, Meta(ge=0, le=2**20)]
"""Number of things of which each has an entry of a tensor."""
BlockSize = Annotated[int, Meta(ge=1, le=2**16)]
"""Tokens per block."""
HeadSize = Annotated[int, Meta(ge=1, le=2**16)]
Counts = Annotated[list[Count], Meta(max_length=MOST_STEPS)]
Lengths = Annotated[list[Tokens], Meta(max_length=2**16)]
"""Tokens of each request."""
InTurn = Annotated[list[Tokens], Meta(min_length=1, max_length=2**16)]
"""Tokens of the first requests, and of those behind them in the same turn."""
Numbers = Annotated[list[Count], Meta(max_length=2**16)]
"""Number of each request, of any magnitude: nothing has that many entries."""
Blocks = Annotated[list[Count], Meta(max_length=2**16)]
"""Block ids of a sequence."""
Layout = Annotated[int, Meta(ge=0, le=3)]
"""Index of `cases.memory.paged_cache.LAYOUTS`."""
CacheDtype = Literal["float16", "bfloat16", "float8_e4m3fn", "uint8", "float32"]
Scale = Annotated[float, Meta(gt=0, le=1e38)]
OutDtype = Literal["", "float32", "float64"]
"""Dtype of an output, "" for that of the queries."""
Pair = Annotated[list[Count], Meta(max_length=2)]
"""Source and destination of a copy; incomplete pairs are left out."""
Pairs = Annotated[list[Pair], Meta(max_length=MOST_STEPS)]


class Params(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Parameters of an operation's cases, by name; a field without a default must be given."""


class LayerParams(Params, kw_only=True):
    """Parameters of the layer of an attention operation (`cases.layers.attention.Shape`)."""

    num_kv_heads: Some
    """Heads of keys and values."""
    group: Some
    """Query heads of a kv head."""
    head_size: HeadSize
    """Elements of a head."""
    dtype: Literal["float16", "bfloat16"]
    """Dtype of queries, keys and values."""
    cache: Literal["auto", "fp8", "uint8"]
    """Dtype of the cache: that of the queries, float8_e4m3fn, or its bits as uint8."""
    layout: Layout
    """Memory layout of the cache: NHD, HND, blocks first, heads first."""
    magnitude: Literal[
        "normal", "large", "denormal", "ties", "one key", "rising", "falling", "lowest"
    ]
    """Kind of the numbers, which decides the scores of the keys."""
    seed: Count
    """Seed of the numbers."""
    k_scale: Scale = 1.0
    """Factor of the keys of an fp8 cache."""
    v_scale: Scale = 1.0
    """Factor of the values of an fp8 cache."""
    window: Count
    """Sliding window in tokens, 0 for none."""
    soft_cap: Annotated[float, Meta(ge=0, le=1e6)]
    """Soft cap of the scores, 0 for none."""


def layer_problem(batch: Batch, params: dict[str, Any]) -> str:
    """Return why a layer's cache or queries are too large for the memory, "" if they are not."""
    token = params["num_kv_heads"] * params["head_size"]
    blocks = len({block for row in batch.blocks for block in row}) + 4  # some stay unused
    gaps = params.get("gap", 0)
    cache = 2 * blocks * batch.block_size * (token + params["num_kv_heads"] * gaps)
    rows = batch.num_tokens + batch.num_requests + batch.padded_requests + batch.padded_tokens
    rows += params.get("spare_rows", 0)
    queries = rows * (token * params.get("group", 3) + gaps)
    if params.get("far") and 2 * (cache + cache // blocks) > FAR_BYTES:
        return "far: the blocks are too large for a far cache"
    return size_problem("num_kv_heads * head_size", max(cache, queries))


def size_problem(name: str, elements: int) -> str:
    """Return the problem of a tensor of too many elements, "" if it is small enough."""
    most = _most_elements.get()
    if elements <= most:
        return ""
    return f"{name}: a tensor of {elements} elements, at most {most} are allowed"


@contextmanager
def elements_limited(most: int) -> Iterator[None]:
    """Let `size_problem` allow tensors of at most `most` elements."""
    token = _most_elements.set(most)
    try:
        yield
    finally:
        _most_elements.reset(token)


def sequence_params(
    steps: dict[str, list[tuple[Any, ...]]], others: list[tuple[Any, ...]] | None = None
) -> type[msgspec.Struct]:
    """Return the type of a sequence's parameters.

    `steps` has the fields of each step by the step's name, `others` the parameters beside the
    steps. A field is its name, its type and, if it may be absent, its default.
    """
    strict: dict[str, Any] = {"forbid_unknown_fields": True, "kw_only": True}
    kinds = [
        msgspec.defstruct(do, fields, tag_field="do", tag=do, **strict)
        for do, fields in steps.items()
    ]
    any_step: Any = reduce(or_, kinds)
    all_steps = Annotated[list[any_step], Meta(max_length=MOST_STEPS)]
    return msgspec.defstruct("Params", [*(others or []), ("steps", all_steps)], **strict)
