"""Diagnosis of a wrong field: the likely cause, derived from how the values differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import add
from typing import Any

import numpy as np
import torch

from attnproof.harness.cases.memory.arena import STALE_PATTERNS
from attnproof.harness.model.call import MISSING, Facts, Quantity
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.verdict import LOST
from attnproof.harness.oracles.guards import are_poison

_OFFSETS = ("query_start_loc", "query_start_loc_cpu")
_IDS = ("block_table_tensor",)
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
_WRONG_BLOCK = "wrong block"
ALIKE = frozenset((_OTHER_ROW, _ONE_TOKEN, _OTHER_BLOCK, _ONE_BLOCK, _WRONG_BLOCK))
"""Diagnoses that may fit the same values by chance, where a case has few and small ones."""


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

    def holds(self, field: str, quantity: Quantity) -> bool:
        """True if the field is the operation's result and its integers are this quantity."""
        return field in _RESULTS and self.facts.result is quantity


def is_overflow(expected: Any, got: Any) -> bool:
    """True if each wrong integer is the expected one, reduced to 32 bits."""
    right, wrong = _array(expected), _array(got)
    if right is None or wrong is None or right.shape != wrong.shape or right.dtype.kind != "i":
        return False
    where = right != wrong
    if not where.any() or np.abs(right[where]).min() < 2**31:
        return False
    return bool((wrong[where] == right[where].astype(np.int32)).all())


def diagnose(context: Context, name: str, expected: Any, got: Any) -> str:
    """Return the most specific diagnosis that fits every wrong element of the field."""
    field = name.rsplit(".", 1)[-1]
    kind = _raised(expected, got) if field == "raises" else _kind(expected, got)
    if kind:
        return kind
    right, wrong = _array(expected), _array(got)
    if right is None or wrong is None:
        return "wrong order" if _same_items(expected, got) else f"{field} is wrong"
    wanted, given = getattr(expected, "dtype", None), getattr(got, "dtype", None)
    if wanted is not None and given is not None and wanted != given:
        return "narrowed dtype" if given.itemsize < wanted.itemsize else "another dtype"
    if isinstance(expected, torch.Tensor) and expected.device != got.device:
        return "on another device"
    if right.shape != wrong.shape:
        return _shape(right, wrong)
    return _values(context, field, right.astype(np.int64), wrong.astype(np.int64))


def _raised(expected: str | None, got: Any) -> str:
    """Return the diagnosis of a wrong error in a step of a sequence."""
    if expected is None:
        return f"raises {got} on good input"
    return "accepts malformed input" if got is None else "wrong error for malformed input"


def _kind(expected: Any, got: Any) -> str:
    """Return the diagnosis of a wrong type, "" if the types agree."""
    if got is MISSING or (got is None and expected is not None):
        return LOST
    if expected is None:
        return "field that should not be set"
    if isinstance(expected, torch.Tensor) and not isinstance(got, torch.Tensor):
        return f"{type(got).__name__} where a tensor was expected"
    if isinstance(expected, np.ndarray) and not isinstance(got, np.ndarray):
        return f"{type(got).__name__} where a numpy array was expected"
    if type(expected) in (int, bool) and type(got) is not type(expected):
        given = f"{type(got).__module__}.{type(got).__name__}"
        return f"{given} where a Python {type(expected).__name__} was expected"
    if isinstance(expected, bool):
        return "the opposite answer"
    return ""


def _same_items(expected: Any, got: Any) -> bool:
    lists = isinstance(expected, list) and isinstance(got, list)
    return lists and sorted(map(repr, expected)) == sorted(map(repr, got))


def _array(value: Any) -> np.ndarray | None:
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu()
        return (plain.double() if plain.is_floating_point() else plain).numpy()
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, int):
        return np.array([value])
    if isinstance(value, list) and value and all(isinstance(item, int) for item in value):
        return np.array(value)
    return None


def _shape(right: np.ndarray, wrong: np.ndarray) -> str:
    if right.ndim == wrong.ndim and right.shape[1:] == wrong.shape[1:]:
        more = len(wrong) - len(right)
        return f"{abs(more)} {'too many' if more > 0 else 'too few'} entries"
    return "another shape"


def _values(context: Context, field: str, right: np.ndarray, wrong: np.ndarray) -> str:
    where = right != wrong
    if not where.any():
        return f"{field} is of another type"
    a, b = right[where], wrong[where]
    difference = b - a
    for fits in (_zero_length, _repeated_tile, _rebased, _progress, _stale):
        text = fits(context, field, right, wrong)
        if text:
            return text
    if field in _IDS:
        return _block_ids(context, right, wrong)
    if field == "slot_mapping" or context.holds(field, Quantity.SLOTS):
        return _slots(context, np.flatnonzero(where), a, b)
    if right.size > 1 and np.array_equal(np.sort(right, axis=None), np.sort(wrong, axis=None)):
        return "wrong order"
    if _are_of_other_rows(context, field, right, wrong):
        return _OTHER_ROW
    if (np.abs(difference) == 1).all():
        unit = "request" if field in ("num_decodes", "num_prefills", "num_reqs") else "token"
        return f"off by one {unit}"
    if field == "seq_lens" and (np.abs(difference) == context.block_size).all():
        return _ONE_BLOCK
    if (difference > 0).all():
        return f"{field} too large"
    return f"{field} {'too small' if (difference < 0).all() else 'wrong'}"


def _are_of_other_rows(context: Context, field: str, right: np.ndarray, wrong: np.ndarray) -> bool:
    """True if each wrong value is that of another row of this batch or of the given one."""
    batch = context.case.batch
    if batch is None or right.ndim != 1 or field not in _OF_ROWS:
        return False
    given = _OF_ROWS[field](batch)
    values = wrong[right != wrong]
    return bool(np.isin(values, right).all() or np.isin(values, given).all())


def _stale(_context: Context, _field: str, right: np.ndarray, wrong: np.ndarray) -> str:
    bad = wrong[right != wrong]
    if (np.abs(bad - STALE_PATTERNS[0]) <= 1).any():
        return "stale entry read"
    return "memory returned that was never written" if are_poison(bad).any() else ""


def _zero_length(context: Context, field: str, right: np.ndarray, wrong: np.ndarray) -> str:
    """Return a diagnosis if only rows without tokens are wrong."""
    batch = context.case.batch
    if batch is None:
        return ""
    counts = field in ("num_decodes", "num_prefills")
    if counts and batch.padded_requests == abs(int(wrong[0] - right[0])):
        return "zero-length (padded) rows miscounted"
    metadata = context.facts.metadata
    rows = np.flatnonzero((right != wrong).reshape(len(right), -1).any(axis=1))
    if field == "seq_lens" and metadata is not None and (right[rows] == 0).all():
        return "zero-length row taken for a real one"
    return ""


def _repeated_tile(_context: Context, _field: str, right: np.ndarray, wrong: np.ndarray) -> str:
    """Return a diagnosis if the first wrong values repeat those 2**k elements earlier."""
    if right.ndim != 1:
        return ""
    places = np.flatnonzero(right != wrong)
    for power in range(4, int(places[0] + 1).bit_length()):
        tile = 1 << power
        inside = places[places < places[0] + tile]
        if np.array_equal(wrong[inside], right[inside - tile]):
            return "repeats the values of an earlier tile"
    return ""


def _rebased(context: Context, field: str, right: np.ndarray, wrong: np.ndarray) -> str:
    """Return a diagnosis if offsets still count from the start of the parent batch."""
    if field not in _OFFSETS and not context.holds(field, Quantity.OFFSETS):
        return ""
    starts = {int(wrong.flat[0] - right.flat[0])}
    starts |= {span[2] for span in context.facts.spans}
    difference = (wrong - right)[right != wrong]
    return "not rebased" if set(difference.tolist()) <= starts - {0} else ""


def _progress(_context: Context, field: str, right: np.ndarray, wrong: np.ndarray) -> str:
    if field != "num_computed_tokens_cpu":
        return ""
    behind = (wrong < right)[right != wrong].all()
    return "computed tokens of a continued request not advanced" if behind else ""


def _block_ids(context: Context, right: np.ndarray, wrong: np.ndarray) -> str:
    batch = context.case.batch
    if batch is None or right.ndim != 2:
        return _WRONG_BLOCK
    where, size = right != wrong, batch.block_size
    if size > 1 and (wrong[where] == (right[where] * size).astype(np.int32)).all():
        return "pages taken for token slots"
    row, column = (int(i) for i in np.argwhere(where)[0])
    owned = [set(blocks) for blocks in batch.blocks]
    mine = next((blocks for blocks in owned if int(right[row, column]) in blocks), set())
    value = int(wrong[row, column])
    if value in mine:
        beside = abs(value - int(right[row, column])) == 1
        return _ONE_BLOCK if beside else "wrong block of the same request"
    if any(value in blocks for blocks in owned):
        return _OTHER_BLOCK
    return "a block that no request owns"


def _slots(context: Context, tokens: np.ndarray, right: np.ndarray, wrong: np.ndarray) -> str:
    size = context.block_size
    if (right == -1).all():
        if "columns" in context.case.params and (tokens < context.facts.tokens).all():
            return "a slot for a position beyond its block-table row"
        return "a slot for an entry that must have none"
    if (wrong == -1).all():
        return "token without its slot"
    if (right == -1).any() or not size:
        return "wrong slot"
    if context.case.batch is not None and not (wrong // size == right // size).any():
        blocks_by_row = enumerate(context.case.batch.blocks)
        owners = {block: row for row, blocks in blocks_by_row for block in blocks}
        mine, theirs = owners.get(int(right[0]) // size), owners.get(int(wrong[0]) // size)
        if mine is not None and theirs is not None and mine != theirs:
            return _OTHER_BLOCK
    if (np.abs(wrong - right) == size).all():
        return _ONE_BLOCK
    if (np.abs(wrong - right) == 1).all():
        return _ONE_TOKEN
    if (wrong % size == right % size).all():
        return _WRONG_BLOCK
    return "wrong slot"
