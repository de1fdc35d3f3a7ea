"""Batches that one GPU serves of Llama-3.1-8B, to time attention and the cache write on."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any, Final

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.cases.layers.shapes import MODELS
from attnproof.harness.model.case import Batch

LAYER: Final[dict[str, Any]] = MODELS[0].layer | {"dtype": "bfloat16"}
_PAGE = 16


def decodes() -> Iterator[tuple[str, Batch]]:
    """Yield decodes, which read all keys and values once."""
    for requests, length in ((64, 8192), (8, 32768), (256, 1024), (1, 8192)):
        yield f"{requests} x 1 query of {length:,}", _of([1] * requests, [length] * requests)
    random = Random(1)
    lengths = [random.randint(1, 6000) for _ in range(128)]
    yield "128 x 1 query of 1 to 6,000", _of([1] * len(lengths), lengths)


def mixed() -> Iterator[tuple[str, Batch]]:
    """Yield batches with several queries a request."""
    yield "32 x 4 queries of 4,096", _of([4] * 32, [4096] * 32)
    yield "63 x 1 query and 2,048 queries of 4,096", _of([1] * 63 + [2048], [4096] * 64)
    yield "4 x 1,024 queries of 9,216", _of([1024] * 4, [9216] * 4)
    for tokens in (2048, 4096, 16384):
        yield f"prefill of {tokens:,}", _of([tokens], [tokens])


def writes() -> Iterator[tuple[str, Batch]]:
    """Yield steps whose keys and values are written: decodes, and a chunk."""
    yield "256 tokens of decodes", _of([1] * 256, [128] * 256)
    yield "8,192 tokens of a prefill", _of([8192], [8192])


def _of(query_lens: list[int], lengths: list[int]) -> Batch:
    computed = [length - q for length, q in zip(lengths, query_lens, strict=True)]
    return make_batch(query_lens, computed, _PAGE, order="shuffled")
