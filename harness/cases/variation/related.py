"""Cases whose outputs follow from those of another one (`oracles.relations`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.relations import Relations

_LARGEST = 2**31 - 1
_ROWS = ("encoder_seq_lens", "dcp_local_seq_lens", "prompt_lens")
"""Fields of a batch with an entry for each row."""


def parts(case: Case, relations: Relations) -> tuple[Case, Case] | None:
    """Return the first half of the requests and the others, None for fewer than two."""
    count = case.num_requests
    if case.batch is None or count < 2 or not _is_divisible(case.batch):
        return None
    half = count // 2
    return _part(case, relations, 0, half), _part(case, relations, half, count)


def chunks(case: Case, relations: Relations) -> tuple[Case, Case] | None:
    """Return the case without the second half of its last query, and that half alone.

    None if the last query has fewer than two tokens.
    """
    batch, count = case.batch, case.num_requests
    if batch is None or not count or batch.query_lens[-1] < 2 or not _is_divisible(batch):
        return None
    last = batch.query_lens[-1] // 2
    whole, tail = _part(case, relations, 0, count), _part(case, relations, count - 1, count)
    if whole.batch is None or tail.batch is None:
        return None
    live = -(-(batch.computed_lens[-1] + last) // batch.block_size)
    first = _as_wide(
        batch,
        replace(
            whole.batch,
            query_lens=(*batch.query_lens[:-1], last),
            blocks=(*batch.blocks[:-1], batch.blocks[-1][:live]),
        ),
    )
    second = _as_wide(
        batch,
        replace(
            tail.batch,
            query_lens=(batch.query_lens[-1] - last,),
            computed_lens=(batch.computed_lens[-1] + last,),
        ),
    )
    return replace(whole, batch=first), replace(tail, batch=second)


def renaming(batch: Batch) -> dict[int, int]:
    """Return other ids for the blocks of the batch: for each the next higher one of them."""
    ids = sorted({block for row in batch.blocks for block in row})
    return dict(zip(ids, [*ids[1:], min(_LARGEST, ids[-1] + 1)] if ids else (), strict=True))


def renamed(batch: Batch, new: Mapping[int, int]) -> Batch:
    """Return the batch with the new block ids."""
    return replace(batch, blocks=tuple(tuple(new[block] for block in row) for row in batch.blocks))


def _is_divisible(batch: Batch) -> bool:
    return batch.logits_indices is None and not batch.no_slots


def _part(case: Case, relations: Relations, first: int, last: int) -> Case:
    """Return the requests [first, last) as a case without padding."""
    batch = case.batch
    assert batch is not None
    rows: dict[str, Any] = {name: getattr(batch, name) for name in _ROWS}
    part = replace(
        batch,
        query_lens=batch.query_lens[first:last],
        computed_lens=batch.computed_lens[first:last],
        blocks=batch.blocks[first:last],
        padded_requests=0,
        padded_tokens=0,
        spare_slots=0,
        num_logits=None,
        **{name: values and values[first:last] for name, values in rows.items()},
    )
    lists = {name: case.params[name] for name in relations.per_request & set(case.params)}
    cut = {
        name: values and [values[row % len(values)] for row in range(first, last)]
        for name, values in lists.items()
    }
    return replace(
        case, batch=_as_wide(batch, part), params={**case.params, **relations.alone, **cut}
    )


def _as_wide(whole: Batch, part: Batch) -> Batch:
    """Return the part with the table width and the bounds of the whole."""
    lengths = [max(_lengths(batch), default=0) for batch in (whole, part)]
    queries = [max(batch.query_lens, default=0) for batch in (whole, part)]
    widths = [max(map(len, batch.blocks), default=0) for batch in (whole, part)]
    return replace(
        part,
        spare_columns=whole.spare_columns + widths[0] - widths[1],
        query_slack=whole.query_slack + queries[0] - queries[1],
        seq_slack=whole.seq_slack + lengths[0] - lengths[1],
    )


def _lengths(batch: Batch) -> list[int]:
    return [q + c for q, c in zip(batch.query_lens, batch.computed_lens, strict=True)]
