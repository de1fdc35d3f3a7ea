"""Known mistakes of integers: each rule holds for every wrong element of a field."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import add

import numpy as np

from attnproof.harness.cases.memory.arena import STALE_PATTERNS, UNWRITTEN_PATTERNS
from attnproof.harness.model.call import Facts, Quantity
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.oracles.guards import are_poison

_OFFSETS = ("query_start_loc", "query_start_loc_cpu")
_IDS = ("block_table_tensor",)
_COUNTS = ("num_decodes", "num_prefills", "num_reqs")
_OF_ROWS: dict[str, Callable[[Batch], Sequence[int]]] = {
    "seq_lens": lambda batch: list(map(add, batch.query_lens, batch.computed_lens)),
    "seq_lens_cpu": lambda batch: list(map(add, batch.query_lens, batch.computed_lens)),
    "num_computed_tokens_cpu": lambda batch: batch.computed_lens,
    "encoder_seq_lens": lambda batch: batch.encoder_seq_lens or (),
    "dcp_local_seq_lens": lambda batch: batch.dcp_local_seq_lens or (),
}
"""The given values of the fields with one entry for each request."""
_RESULTS = ("result", "out")
_OTHER_ROW, _ONE_TOKEN = "another request's row", "off by one token"
_OTHER_BLOCK, _ONE_BLOCK = "another request's block", "off by one block"
_WRONG_BLOCK, _OTHER_OF_MINE = "wrong block", "wrong block of the same request"
_ONE_REQUEST, _PADDED = "off by one request", "zero-length (padded) rows miscounted"
_UNOWNED = "a block that no request owns"
_ZERO_LENGTH = "zero-length row taken for a real one"
_STALE, _BEYOND_ROW = "stale entry read", "a slot for a position beyond its block-table row"
_DIVIDED = "32-bit overflow before a division"
_STALE_WORDS = [
    pattern[0] + step for pattern in (STALE_PATTERNS, UNWRITTEN_PATTERNS) for step in (-1, 0, 1)
]
"""Words in stale places and in unwritten buffers; some count from the pattern up or down."""
_MOST_BLOCKS = 4096
"""Wrong blocks of a field whose owners are looked up."""
_LARGEST_DIVISOR = 1 << 16
"""Largest divisor of `_divided`: larger ones explain one value in a few thousand by chance."""
_IMPLIED = {
    "wrong order": (_OTHER_ROW,),
    _ONE_BLOCK: (_OTHER_OF_MINE,),
    _ZERO_LENGTH: (_ONE_TOKEN,),
    _PADDED: (_ONE_REQUEST,),
    _BEYOND_ROW: (_STALE,),
    _DIVIDED: (_ONE_BLOCK, _ONE_TOKEN, _ONE_REQUEST),
    "a refused batch left behind": ("an earlier batch left behind",),
    "sliding window ignored": ("sliding window and soft cap ignored",),
    "soft cap ignored": ("sliding window and soft cap ignored",),
}
"""Mistakes by those that are a special case of them."""


def implies(text: str, other: str) -> bool:
    """True if the mistake `text` is a special case of the other one."""
    return text.startswith(f"{other} ") or other in _IMPLIED.get(text, ())


@dataclass(frozen=True)
class Context:
    """Input of a diagnosis: the case and the facts of the call."""

    case: Case
    facts: Facts

    @property
    def block_size(self) -> int:
        """Tokens per block, 0 if the case has none."""
        if self.case.batch is not None:
            return self.case.batch.block_size
        return self.facts.block_size


@dataclass(frozen=True)
class Values:
    """The integers of a wrong field on both sides, int64 arrays of one shape."""

    context: Context
    field: str
    right: np.ndarray
    wrong: np.ndarray

    @cached_property
    def where(self) -> np.ndarray:
        """Mask of the wrong elements."""
        return np.asarray(self.right != self.wrong)

    @cached_property
    def expected(self) -> np.ndarray:
        """The right values of the wrong elements, one-dimensional."""
        return np.asarray(self.right[self.where])

    @cached_property
    def got(self) -> np.ndarray:
        """The wrong values."""
        return np.asarray(self.wrong[self.where])

    def holds(self, quantity: Quantity) -> bool:
        """True if the field is the operation's result and its integers are this quantity."""
        return self.field in _RESULTS and self.context.facts.result is quantity

    @property
    def are_slots(self) -> bool:
        """True if the integers are cache slots."""
        return self.field == "slot_mapping" or self.holds(Quantity.SLOTS)


def known_mistakes(values: Values) -> tuple[str, tuple[str, ...]]:
    """Return the diagnosis, and the known mistakes that explain each wrong element."""
    stale = _stale(values)
    if stale:  # poison is there by no other mistake, but what follows a row may be stale or not
        beyond = values.are_slots and stale == _STALE and _lost_slots(values) == _BEYOND_ROW
        return stale, (stale, _BEYOND_ROW) if beyond else (stale,)
    rules = [_zero_length, _repeated_tile, _rebased, _progress]
    if values.field in _IDS:
        rules += [_ids_of_slots, _off_by_one_block, _other_blocks]
    elif values.are_slots:
        rules += [_lost_slots, _slots_of_others, _off_by_a_block, _off_by_one]
    else:
        rules += [_order, _divided, _other_rows, _off_by_one, _off_by_a_block]
    fits = tuple(dict.fromkeys(text for rule in rules if (text := rule(values))))
    return (fits or (_vague(values),))[0], fits


def _vague(values: Values) -> str:
    """Return a text for values that no known mistake gives."""
    if values.field in _IDS:
        return _WRONG_BLOCK
    size, difference = values.context.block_size, values.got - values.expected
    if values.are_slots:
        in_place = size and (values.expected != -1).all() and (difference % size == 0).all()
        return _WRONG_BLOCK if in_place else "wrong slot"
    if (difference > 0).all():
        return f"{values.field} too large"
    return f"{values.field} {'too small' if (difference < 0).all() else 'wrong'}"


def _order(values: Values) -> str:
    right, wrong = (np.sort(side, axis=None) for side in (values.right, values.wrong))
    return "wrong order" if right.size > 1 and np.array_equal(right, wrong) else ""


def _differ_by(values: Values, number: int) -> bool:
    """True if each wrong value is the right one more or less this number, and both are counts."""
    are_counts = (values.got >= 0).all() and (values.expected >= 0).all()
    return bool(are_counts and (np.abs(values.got - values.expected) == number).all())


def _off_by_one(values: Values) -> str:
    if not _differ_by(values, 1):
        return ""
    return _ONE_REQUEST if values.field in _COUNTS else _ONE_TOKEN


def _off_by_a_block(values: Values) -> str:
    size = values.context.block_size
    if not size or (values.field in _OF_ROWS and values.field != "seq_lens"):
        return ""
    return _ONE_BLOCK if _differ_by(values, size) else ""


def _divided(values: Values) -> str:
    """Return a diagnosis if a number of the case divides a dividend that has wrapped."""
    params = values.context.case.params.values()
    numbers = {values.context.block_size, *(number for number in params if type(number) is int)}
    divisors = (number for number in numbers if 1 < number <= _LARGEST_DIVISOR)
    return _DIVIDED if any(_is_wrapped(values, divisor) for divisor in divisors) else ""


def _is_wrapped(values: Values, divisor: int) -> bool:
    """True if each wrong value is the right quotient of a dividend that is reduced to 32 bits.

    The dividends are known but for remainders, whether the division rounds down, up or to 0.
    """
    if np.abs(values.expected).max() >= 1 << 46 or np.abs(values.got).max() > 1 << 31:
        return False
    wrong = values.got * divisor
    difference = values.expected * divisor - wrong
    rest = (difference + (1 << 31)) % (1 << 32) - (1 << 31)  # to the nearest multiple of 2**32
    is_reduced = (wrong > -(1 << 31) - divisor) & (wrong < 1 << 31)
    is_multiple = (np.abs(rest) < 2 * divisor) & (np.abs(difference) > 1 << 31)
    return bool((is_reduced & is_multiple).all())


def _other_rows(values: Values) -> str:
    """Return a diagnosis if each wrong value is that of another request's row.

    Zeros are left out: those of padded rows, and of counts that are lost.
    """
    batch, right, field = values.context.case.batch, values.right, values.field
    if batch is None or batch.num_requests < 2 or right.ndim != 1 or field not in _OF_ROWS:
        return ""
    given = _OF_ROWS[field](batch)
    others = (
        np.isin(value, np.delete(right, row)) or value in given
        for row, value in zip(np.flatnonzero(values.where), values.got, strict=True)
    )
    return _OTHER_ROW if values.got.all() and all(others) else ""


def _stale(values: Values) -> str:
    if _are_stale(values.expected).all():
        return "writes an entry that must keep its value"
    if (values.got == UNWRITTEN_PATTERNS[0]).all():
        is_whole = values.where.all()
        return "the whole output left unwritten" if is_whole else "an entry left unwritten"
    if _are_stale(values.got).any():
        return _STALE
    return "memory returned that was never written" if are_poison(values.got).any() else ""


def _are_stale(values: np.ndarray) -> np.ndarray:
    return np.isin(values, _STALE_WORDS)


def _zero_length(values: Values) -> str:
    """Return a diagnosis if only rows without tokens are wrong."""
    batch = values.context.case.batch
    if batch is None:
        return ""
    counts = values.field in ("num_decodes", "num_prefills")
    if counts and batch.padded_requests == abs(int(values.got[0] - values.expected[0])):
        return _PADDED
    rows = values.where.reshape(len(values.right), -1).any(axis=1)
    has_metadata = values.context.facts.metadata is not None
    if values.field == "seq_lens" and has_metadata and (values.right[rows] == 0).all():
        return _ZERO_LENGTH
    return ""


def _repeated_tile(values: Values) -> str:
    """Return a diagnosis if each wrong value is that of the first, or of the previous, 2**k."""
    right, places = values.right, np.flatnonzero(values.where)
    if right.ndim != 1 or len(places) == 1 < len(right) - places[0]:
        return ""
    for power in range(4, int(places[0] + 1).bit_length()):
        tile = 1 << power
        start = places[0] - tile  # of the first tile: a list may have had entries before
        for sources in (places % tile, start + (places - start) % tile, places - tile):
            if np.array_equal(values.got, right[sources]):
                return "repeats the values of an earlier tile"
    return ""


def _rebased(values: Values) -> str:
    """Return a diagnosis if offsets still count from the start of the parent batch."""
    if values.field not in _OFFSETS and not values.holds(Quantity.OFFSETS):
        return ""
    starts = {int(values.wrong.flat[0] - values.right.flat[0])}
    starts |= {span[2] for span in values.context.facts.spans}
    return "not rebased" if {*(values.got - values.expected).tolist()} <= starts - {0} else ""


def _progress(values: Values) -> str:
    batch = values.context.case.batch
    if values.field != "num_computed_tokens_cpu" or batch is None:
        return ""
    behind = (values.got < values.expected).all() and np.isin(values.got, batch.computed_lens).all()
    return "computed tokens of a continued request not advanced" if behind else ""


def _ids_of_slots(values: Values) -> str:
    size = values.context.block_size
    same = size > 1 and bool((values.got == (values.expected * size).astype(np.int32)).all())
    return "pages taken for token slots" if same else ""


def _off_by_one_block(values: Values) -> str:
    return _ONE_BLOCK if _differ_by(values, 1) else ""


def _other_blocks(values: Values) -> str:
    kinds = _owners(values.context, values.expected.tolist(), values.got.tolist())
    return kinds.pop() if len(kinds) == 1 else ""


def _owners(context: Context, right: list[int], wrong: list[int]) -> set[str]:
    """Return to whom the wrong blocks belong, in words; empty without a batch."""
    batch = context.case.batch
    if batch is None:
        return set()
    rows: dict[int, set[int]] = {}
    for row, blocks in enumerate(batch.blocks):
        for block in blocks:
            rows.setdefault(block, set()).add(row)
    kinds = set()
    for block, other in zip(right[:_MOST_BLOCKS], wrong[:_MOST_BLOCKS], strict=True):
        mine, theirs = rows.get(block, set()), rows.get(other, set())
        kinds.add(_OTHER_OF_MINE if mine & theirs else _OTHER_BLOCK if theirs else _UNOWNED)
    return kinds


def _lost_slots(values: Values) -> str:
    if (values.expected == -1).all():
        inside = (np.flatnonzero(values.where) < values.context.facts.tokens).all()
        if values.context.case.params.get("columns") is not None and inside:
            return _BEYOND_ROW
        return "a slot for an entry that must have none"
    return "token without its slot" if (values.got == -1).all() else ""


def _slots_of_others(values: Values) -> str:
    size = values.context.block_size
    if not size or (values.expected == -1).any():
        return ""
    blocks, others = values.expected // size, values.got // size
    kinds = _owners(values.context, blocks.tolist(), others.tolist())
    return _OTHER_BLOCK if kinds == {_OTHER_BLOCK} else ""
