"""A change of one feature of a case."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import NamedTuple

from attnproof.harness.model.case import Batch, Case


class Change(NamedTuple):
    """A value of one feature, and how a case gets it."""

    feature: str
    """Feature that is changed, such as "rows"; a case gets at most one value of each."""
    name: str
    """Value of the feature, such as "33 rows"."""
    group: str
    """Values that differ by little, such as a limit and its neighbours: one of them is tried
    before the others."""
    apply: Callable[[Case], Case | None]
    """Function from a case to the changed one, None if the case has no such feature. The result
    may be ill-formed: the caller checks it."""


def change_alone(feature: str, name: str, apply: Callable[[Case], Case | None]) -> Change:
    """Return a change that is a group by itself."""
    return Change(feature, name, name, apply)


MOST_SIZE, MOST_LARGE = 1500, 70_000
"""Maximum of `size_of` a case that is made by changes, and of the few large ones."""
_MOST_ELEMENTS, _MOST_LARGE_ELEMENTS = 2**19, 2**22
"""Maximum of tensor elements of a case, and of a large one."""
_MOST_PRODUCTS = 2**25
_CONTAINERS = (dict, list, tuple)


class Limits(NamedTuple):
    """Inputs that determine the size of an operation's cases."""

    sizes: tuple[str, ...]
    """Integers among the parameters that are sizes of tensors."""
    whole_contexts: bool
    """`Inputs.whole_contexts` of the operation."""
    attends: bool
    """True if the operation multiplies each query token with all keys of its sequence."""
    lays_out_tokens: bool
    """False if the tokens of a case without a batch are numbers only."""
    most: int = MOST_SIZE
    """Maximum of `size_of` a case."""

    @property
    def enlarged(self) -> Limits:
        """Limits of the few large cases."""
        return self._replace(most=MOST_LARGE)


def is_small(case: Case, limits: Limits) -> bool:
    """True if the case is cheap to lay out and to compute."""
    counted = case.num_tokens if case.batch is None and not limits.lays_out_tokens else 0
    if size_of(case) - counted > limits.most:
        return False
    values = (case.params.get(name) for name in limits.sizes)
    factor = prod(max(1, value) for value in values if isinstance(value, int))
    tokens, batch = 1 + case.num_tokens, case.batch
    elements = _MOST_ELEMENTS if limits.most == MOST_SIZE else _MOST_LARGE_ELEMENTS
    if batch is None:
        return factor <= elements
    rows, columns = _block_table_shape(batch)
    if max(tokens, rows * columns) * factor > elements:
        return False
    if not limits.whole_contexts:
        return True
    lengths = [q + c for q, c in zip(batch.query_lens, batch.computed_lens, strict=True)]
    products = sum(q * length for q, length in zip(batch.query_lens, lengths, strict=True))
    cache = len({block for row in batch.blocks for block in row}) * batch.block_size
    table = max((1 + rows) * max(lengths, default=0), cache) + tokens
    if limits.attends and products * factor > _MOST_PRODUCTS:
        return False
    return table * factor <= elements


def size_of(case: Case) -> int:
    """Return the entries that a case lays out: requests, tokens, blocks and list entries."""
    total = _entries(case.params)
    batch = case.batch
    if batch is None:
        total += case.num_tokens
    if batch is not None:
        rows, columns = _block_table_shape(batch)
        tokens = batch.num_tokens + batch.padded_tokens + batch.spare_slots + batch.logits_padding
        total += rows + tokens + rows * columns // 32
    return total


def _block_table_shape(batch: Batch) -> tuple[int, int]:
    """Return rows and columns of the block table."""
    rows = batch.num_requests + batch.padded_requests
    return rows, max(map(len, batch.blocks), default=0) + batch.spare_columns


def _entries(value: object) -> int:
    if isinstance(value, dict):
        return sum(map(_entries, value.values()))
    if isinstance(value, list | tuple):
        # Most lists hold numbers, of which there may be many.
        return len(value) + sum(_entries(item) for item in value if type(item) in _CONTAINERS)
    return 0
