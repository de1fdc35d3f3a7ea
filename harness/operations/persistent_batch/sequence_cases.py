"""Edge cases of `batch_sequence`, and sequences of the requests of a batch."""

from __future__ import annotations

from collections.abc import Iterator

from attnproof.harness.model.case import Batch, Case
from attnproof.harness.operations.shared.sequence import Step, step_pairs

NAME = "batch_sequence"
SIZES = {"max_num_reqs": 4, "max_num_tokens": 24, "max_num_blocks": 3, "block_size": 4}
"""Sizes of the buffers, unless a case has others."""


def _case(*steps: Step, **sizes: int) -> Case:
    return Case(NAME, None, SIZES | sizes | {"steps": list(steps)})


def _add(blocks: int, tokens: int = 0) -> Step:
    return {"do": "add", "blocks": blocks, "tokens": tokens}


def _build(*lens: int, pad_reqs: int = 0, pad_tokens: int = 0) -> Step:
    return {"do": "build", "lens": list(lens), "pad_reqs": pad_reqs, "pad_tokens": pad_tokens}


def _remove(which: int) -> Step:
    return {"do": "remove", "which": which}


def _holes(holes: int) -> Iterator[Step]:
    """Yield steps that remove the requests of the bits of `holes`, condense, and fill the rows."""
    rows = [row for row in range(5) if holes >> row & 1]
    # A request is named by its place among those that are left.
    yield from [_remove(row - removed) for removed, row in enumerate(rows)]
    yield from ({"do": "condense"}, _build(1, 2), *[_add(1 + row % 3, row) for row in rows])


def _dummies_beside_holes() -> Iterator[Step]:
    """Yield a dummy step of each size while each of three requests has left its row."""
    for which in range(3):
        for reqs in (1, 2, 3):
            dummy = {"do": "dummy", "reqs": reqs, "tokens": reqs}
            yield from (_remove(which), dummy, _add(1 + which, which), _build(1, 2, 1))


def boundaries() -> Iterator[tuple[str, Case]]:
    """Yield the edge cases by name."""
    swap, condense = {"do": "swap", "i": 0, "j": 2}, {"do": "condense"}
    split = {"do": "split", "threshold": 0}
    advance, slots = {"do": "advance"}, {"do": "slots"}
    dummy = {"do": "dummy", "reqs": 2, "tokens": 7}
    three = (_add(2, 3), _add(1, 1), _add(3, 5))
    yield "swapped rows (K12)", _case(*three, swap, _build(1, 2, 3), swap, _build(1))
    yield (
        "padded rows after more requests (K13)",
        _case(
            *three,
            _build(2),
            _remove(2),
            _remove(1),
            {"do": "condense"},
            _build(1, pad_reqs=2, pad_tokens=3),
        ),
    )
    gone = (_remove(0), _remove(0), _remove(0), {"do": "condense"})
    yield "nobody left, padded rows (K13)", _case(*three, _build(2), *gone, _build(pad_reqs=2))
    yield "dummy run after a step (K17)", _case(*three, _build(2), dummy, slots, _build(1))
    beside = _case(*three, _build(1, 1, 1), *_dummies_beside_holes())
    yield "dummy runs beside holes", beside
    yield "slot buffer before the first step (K17)", _case(_add(1), dummy)
    yield (
        "shorter request in a longer row (K18)",
        _case(
            *(_add(3, 11), _build(1), _remove(0), _add(1, 4)),
            *({"do": "append", "which": 0, "blocks": 0}, _build(3), slots),
        ),
    )
    resumed = {"do": "resume", "blocks": 3, "tokens": 5}
    yield (
        "preempted, then in its row with other blocks",
        _case(*three, _build(1), _remove(2), resumed, _build(1)),
    )
    yield "two holes", _case(*three, _add(0), _remove(0), _remove(1), condense, _build(1))
    for first in range(1, 32, 8):
        sizes = {"max_num_reqs": 5, "max_num_tokens": 40, "max_num_blocks": 4}
        last = min(first + 7, 30)
        steps = [step for holes in range(first, last + 1) for step in _holes(holes)]
        five = [_add(1 + row % 3, row) for row in range(5)]
        yield f"sets of holes {first} to {last} of five rows", _case(*five, *steps, **sizes)
    yield "lowest hole first", _case(*three, _remove(0), _remove(1), _add(1), _add(2), _build(1))
    yield "hole at the end", _case(*three, _remove(2), _add(2, 1), _remove(2), condense, _build(1))
    yield "tokens of three steps", _case(_add(3), *(_build(4), advance, slots) * 3)
    served = ({"do": "reorder", "lens": [5, 1, 2], "threshold": 0}, _build(5, 1, 2), split)
    yield (
        "counts and swaps beside a hole",
        _case(*three, _build(1, 1, 1), _remove(0), advance, {"do": "swap", "i": 0, "j": 1}),
    )
    rejected = {"do": "reject", "tokens": [2, 0, 1]}
    yield "rejected drafts", _case(_add(3), _add(2), *(_build(3, 2), advance, rejected, slots) * 2)
    yield "reordered batch", _case(*three, *served, advance, *served)
    yield (
        "micro-batches and virtual batches of a padded batch",
        _case(
            *(*three, _build(3, pad_reqs=1, pad_tokens=2)),
            *({"do": "cut", "at": 4}, {"do": "local", "blocks": 0}),
        ),
    )
    bad = [{"do": "bad", "kind": kind} for kind in range(14)]
    yield "refused steps change nothing", _case(*three, _build(2), _remove(1), *bad)
    yield "highest block ids, block size 16", _case(_add(1, 9), _build(5), block_size=16)
    yield from _pairs()


def _pairs() -> Iterator[tuple[str, Case]]:
    """Yield pairs of steps between two builds, on the same row where they take one."""
    kinds: dict[str, list[Step]] = {
        "add": [_add(1, 3)],
        "append": [{"do": "append", "which": 0, "blocks": 0}],
        "remove": [_remove(0)],
        "resume": [{"do": "resume", "blocks": 2, "tokens": 5}],
        "swap": [{"do": "swap", "i": 0, "j": 1}],
        "advance": [{"do": "advance"}],
        "reject": [{"do": "reject", "tokens": [1, 0]}],
        "dummy": [{"do": "dummy", "reqs": 1, "tokens": 5}],
    }
    condense = {"do": "condense"}
    empty = [*[_remove(0)] * 5, condense]
    before = [*empty, _add(1, 2), _add(2, 3), _add(1, 0), _build(1, 2, 3)]
    # Its tokens need all blocks of each row: what is behind them is not read.
    after = [condense, _build(20), {"do": "slots"}]
    for name, steps in step_pairs(kinds, before, after):
        yield name, _case(*steps, max_num_reqs=5, max_num_tokens=99, max_num_blocks=6)


def from_batch(batch: Batch) -> Iterator[Case]:
    """Yield a sequence of up to six of the batch's requests, with at most three blocks each."""
    rows = list(zip(batch.blocks, batch.computed_lens, strict=True))[:6]
    requests = [_add(len(blocks) % 4, computed) for blocks, computed in rows]
    lens = [min(query_len, 9) for query_len in batch.query_lens[:6]]
    reorder = {"do": "reorder", "lens": lens, "threshold": 0}
    steps = [*requests, _build(*lens, pad_reqs=batch.num_tokens % 2), {"do": "advance"}]
    steps += [_remove(batch.num_tokens % 5), {"do": "condense"}, reorder, _build(*lens)]
    sizes = {"max_num_reqs": 6, "block_size": batch.block_size}
    yield _case(*steps, {"do": "split", "threshold": 0}, {"do": "slots"}, **sizes)
