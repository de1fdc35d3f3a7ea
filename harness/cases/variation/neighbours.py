"""Batches with as many rows and tokens as another one, which differ in how they are used.

What a builder or a function keeps under a key of counts is wrong for them.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from attnproof.harness.cases.batches.consistency import batch_problem
from attnproof.harness.model.case import Batch


def neighbours_of(batch: Batch) -> list[Batch]:
    """Return the well-formed batches near this one, each once."""
    neighbours: list[Batch] = []
    for other in _neighbours(batch):
        if other != batch and other not in neighbours and not batch_problem(other):
            neighbours.append(other)
    return neighbours


def _neighbours(batch: Batch) -> Iterator[Batch]:
    yield with_moved_token(batch)
    yield with_live_padding(batch)
    yield with_idle_row(batch)


def with_moved_token(batch: Batch) -> Batch:
    """Return the batch with one query token more in a short row, and one less in the longest.

    Lengths of sequences stay. The token goes to the last of the shortest rows, as when a decode
    gets a draft. Return the batch itself if there is none.
    """
    queries, computed = list(batch.query_lens), list(batch.computed_lens)
    longest = max(range(len(queries)), key=queries.__getitem__, default=0)
    others = [row for row, c in enumerate(computed) if c and queries[row] and row != longest]
    if not others or queries[longest] < 2:
        return batch
    short = min(others, key=lambda row: (queries[row], -row))
    for row, more in ((short, 1), (longest, -1)):
        queries[row] += more
        computed[row] -= more
    return replace(batch, query_lens=tuple(queries), computed_lens=tuple(computed))


def with_live_padding(batch: Batch) -> Batch:
    """Return the batch with requests of one token in place of padded rows and tokens."""
    count = min(batch.padded_requests, batch.padded_tokens)
    unused = 1 + max((block for blocks in batch.blocks for block in blocks), default=0)
    if not count or batch.no_slots or unused + count >= 2**31:
        return batch
    prompts = batch.prompt_lens
    return replace(
        batch,
        query_lens=(*batch.query_lens, *[1] * count),
        computed_lens=(*batch.computed_lens, *[0] * count),
        blocks=(*batch.blocks, *((unused + row,) for row in range(count))),
        padded_requests=batch.padded_requests - count,
        padded_tokens=batch.padded_tokens - count,
        prompt_lens=None if prompts is None else (*prompts, *[1] * count),
    )


def with_idle_row(batch: Batch) -> Batch:
    """Return the batch with a padding token in place of the first decode's token."""
    queries, computed = list(batch.query_lens), list(batch.computed_lens)
    decodes = [row for row, c in enumerate(computed) if c and queries[row] == 1]
    if not decodes:
        return batch
    queries[decodes[0]] = 0
    computed[decodes[0]] += 1
    return replace(
        batch,
        query_lens=tuple(queries),
        computed_lens=tuple(computed),
        padded_tokens=batch.padded_tokens + 1,
    )
