"""Diagnosis of a wrong field: the likely cause, derived from how the values differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import add
from typing import Any

import numpy as np
import torch

from attnproof.harness.cases.memory.arena import STALE_PATTERNS, UNWRITTEN_PATTERNS
from attnproof.harness.model.call import MISSING, Facts, Quantity
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.place import Place
from attnproof.harness.model.verdict import CONSUMER, LOST, Failure
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
_WRONG_BLOCK, _OTHER_OF_MINE = "wrong block", "wrong block of the same request"
_ONE_REQUEST, _PADDED = "off by one request", "zero-length (padded) rows miscounted"
_UNOWNED = "a block that no request owns"
_ZERO_LENGTH = "zero-length row taken for a real one"
_STALE, _BEYOND_ROW = "stale entry read", "a slot for a position beyond its block-table row"
_STALE_WORDS = [
    pattern[0] + step for pattern in (STALE_PATTERNS, UNWRITTEN_PATTERNS) for step in (-1, 0, 1)
]
"""Words in stale places and in unwritten buffers; some count from the pattern up or down."""
_MOST_BLOCKS = 4096
"""Wrong blocks of a field whose owners are looked up."""
_SHARE = 0.9
"""Share of the failing cases that a known mistake must explain to be the heading."""
_MOST_WORDS = 120
"""Characters of a message that can be a heading."""
_IMPLIED = {
    "wrong order": (_OTHER_ROW,),
    _ONE_BLOCK: (_OTHER_OF_MINE,),
    _ZERO_LENGTH: (_ONE_TOKEN,),
    _PADDED: (_ONE_REQUEST,),
    _BEYOND_ROW: (_STALE,),
    "a refused batch left behind": ("an earlier batch left behind",),
    "sliding window ignored": ("sliding window and soft cap ignored",),
    "soft cap ignored": ("sliding window and soft cap ignored",),
}
"""Mistakes by those that are a special case of them."""
_VAGUE = (
    *("attention is wrong", "wrong attention", "wrong slot", _WRONG_BLOCK, "wrong fp8 codes"),
    *("wrong elements of a token", "wrong key or value written"),
)
"""Texts that name no mistake."""


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
    return bool(where.any() and (wrong[where] == right[where].astype(np.int32)).all())


def heading(failure: Failure, explained: Counter[str] | None = None, cases: int = 1) -> str:
    """Return the known mistake of a root cause, or what is seen if none explains it alone.

    `failure` is that of the case that is shown, `explained` counts the failing cases that each
    known mistake explains, of `cases`. Without other cases all mistakes are named that fit.
    """
    if failure.fits is None:
        return failure.diagnosis
    counts = Counter(failure.fits) if explained is None else explained
    known = [text for text, count in counts.items() if count >= _SHARE * cases]
    known = [text for text in known if not any(_implies(other, text) for other in known)]
    if known and (
        explained is None or known == [text for text in known[:1] if text in failure.fits]
    ):
        return " or ".join(known)
    where = failure.where or failure.field
    seen = failure.message if len(failure.message) <= _MOST_WORDS else f"{where} is wrong"
    return f"{seen}: {failure.about}" if failure.about else seen


def sentence(failure: Failure) -> str:
    """Return the message, after the known mistake unless one of the two repeats the other."""
    mistake = heading(failure)
    repeated = mistake in failure.message or mistake.startswith(failure.message)
    return failure.message if repeated else f"{mistake}: {failure.message}"


def kernel_sentence(failures: Sequence[Failure]) -> str:
    """Return what a kernel reads or writes wrongly by the failures of a case, "" if unknown.

    It is "" too if the first failure says it.
    """
    seen = [sentence(failure) for failure in failures if failure.oracle == CONSUMER]
    return f"In a kernel: {seen[0]}." if seen and failures[0].oracle != CONSUMER else ""


def _implies(text: str, other: str) -> bool:
    """True if the mistake `text` is a special case of the other one."""
    return text.startswith(f"{other} ") or other in _IMPLIED.get(text, ())


def diagnose(
    context: Context, name: str, expected: Any, got: Any, own: str | tuple[str, ...] = ""
) -> tuple[str, tuple[str, ...] | None]:
    """Return the diagnosis of a wrong field, and `Failure.fits`.

    `own` are the operation's own diagnoses, which go before the general ones.
    """
    texts = tuple(filter(None, (own,) if isinstance(own, str) else own))
    if texts:
        return texts[0], tuple(text for text in texts if not text.startswith(_VAGUE))
    field = name.rsplit(".", 1)[-1]
    fact = _raised(expected, got) if field == "raises" else _fact(field, expected, got)
    right, wrong = _array(expected), _array(got)
    if fact or right is None or wrong is None:
        return fact or f"{field} is wrong", None
    right, wrong = right.astype(np.int64), wrong.astype(np.int64)
    rest = np.where(wrong == right.astype(np.int32), right, wrong)  # overflow has its own root
    return _values(context, field, right, rest if (rest != right).any() else wrong)


def _fact(field: str, expected: Any, got: Any) -> str:
    """Return a diagnosis that is no guess: of a wrong type, dtype, device or shape."""
    kind = _kind(expected, got)
    if kind:
        return kind
    right, wrong = _array(expected), _array(got)
    if right is None or wrong is None:
        return "wrong order" if _same_items(expected, got) else f"{field} is wrong"
    wanted, got_dtype = getattr(expected, "dtype", None), getattr(got, "dtype", None)
    if wanted is not None and got_dtype is not None and wanted != got_dtype:
        return "narrowed dtype" if got_dtype.itemsize < wanted.itemsize else "another dtype"
    if isinstance(expected, torch.Tensor) and expected.device != got.device:
        return "on another device"
    if right.shape != wrong.shape:
        return _shape(right, wrong)
    return "" if (right != wrong).any() else f"{field} is of another type"


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
        type_name = f"{type(got).__module__}.{type(got).__name__}"
        return f"{type_name} where a Python {type(expected).__name__} was expected"
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


def _values(
    context: Context, field: str, right: np.ndarray, wrong: np.ndarray
) -> tuple[str, tuple[str, ...]]:
    """Return the diagnosis of wrong integers, and the mistakes that fit all of them."""
    stale = _stale(context, field, right, wrong)
    is_slots = field == "slot_mapping" or context.holds(field, Quantity.SLOTS)
    if stale:  # poison is there by no other mistake, but what follows a row may be stale or not
        slots = is_slots and stale == _STALE
        beyond = slots and _lost_slots(context, field, right, wrong) == _BEYOND_ROW
        return stale, (stale, _BEYOND_ROW) if beyond else (stale,)
    rules = [_zero_length, _repeated_tile, _rebased, _progress]
    if field in _IDS:
        rules += [_ids_of_slots, _off_by_one_block, _other_blocks]
    elif is_slots:
        rules += [_lost_slots, _slots_of_others, _off_by_a_block, _off_by_one]
    else:
        rules += [_order, _other_rows, _off_by_one, _off_by_a_block]
    texts = [rule(context, field, right, wrong) for rule in rules]
    fits = tuple(dict.fromkeys(text for text in texts if text))
    return (fits or (_vague(context, field, right, wrong),))[0], fits


def _vague(context: Context, field: str, right: np.ndarray, wrong: np.ndarray) -> str:
    """Return a text for values that no known mistake gives."""
    where, size = right != wrong, context.block_size
    if field in _IDS:
        return _WRONG_BLOCK
    if field == "slot_mapping" or context.holds(field, Quantity.SLOTS):
        in_place = size and (right[where] != -1).all() and (wrong % size == right % size).all()
        return _WRONG_BLOCK if in_place else "wrong slot"
    if (wrong >= right).all():
        return f"{field} too large"
    return f"{field} {'too small' if (wrong <= right).all() else 'wrong'}"


def _order(_context: Context, _field: str, right: np.ndarray, wrong: np.ndarray) -> str:
    same = right.size > 1 and np.array_equal(np.sort(right, axis=None), np.sort(wrong, axis=None))
    return "wrong order" if same else ""


def _off_by_one(_context: Context, field: str, right: np.ndarray, wrong: np.ndarray) -> str:
    where = right != wrong
    if (np.abs(wrong - right)[where] != 1).any() or (wrong[where] < 0).any():
        return ""
    return _ONE_REQUEST if field in ("num_decodes", "num_prefills", "num_reqs") else _ONE_TOKEN


def _off_by_a_block(context: Context, field: str, right: np.ndarray, wrong: np.ndarray) -> str:
    size = context.block_size
    if not size or (field in _OF_ROWS and field != "seq_lens"):
        return ""
    return _ONE_BLOCK if (np.abs(wrong - right)[right != wrong] == size).all() else ""


def _other_rows(context: Context, field: str, right: np.ndarray, wrong: np.ndarray) -> str:
    """Return a diagnosis if each wrong value is that of another request's row.

    Zeros are left out: those of padded rows, and of counts that are lost.
    """
    batch = context.case.batch
    if batch is None or batch.num_requests < 2 or right.ndim != 1 or field not in _OF_ROWS:
        return ""
    rows = np.flatnonzero(right != wrong)
    values = _OF_ROWS[field](batch)
    others = (np.isin(wrong[row], np.delete(right, row)) or wrong[row] in values for row in rows)
    return _OTHER_ROW if wrong[rows].all() and all(others) else ""


def _stale(_context: Context, _field: str, right: np.ndarray, wrong: np.ndarray) -> str:
    where = right != wrong
    if _are_stale(right[where]).all():
        return "writes an entry that must keep its value"
    bad = wrong[where]
    if (bad == UNWRITTEN_PATTERNS[0]).all():
        return "the whole output left unwritten" if where.all() else "an entry left unwritten"
    if _are_stale(bad).any():
        return _STALE
    return "memory returned that was never written" if are_poison(bad).any() else ""


def _are_stale(values: np.ndarray) -> np.ndarray:
    return np.isin(values, _STALE_WORDS)


def _zero_length(context: Context, field: str, right: np.ndarray, wrong: np.ndarray) -> str:
    """Return a diagnosis if only rows without tokens are wrong."""
    batch = context.case.batch
    if batch is None:
        return ""
    counts = field in ("num_decodes", "num_prefills")
    if counts and batch.padded_requests == abs(int(wrong[0] - right[0])):
        return _PADDED
    metadata = context.facts.metadata
    rows = np.flatnonzero((right != wrong).reshape(len(right), -1).any(axis=1))
    if field == "seq_lens" and metadata is not None and (right[rows] == 0).all():
        return _ZERO_LENGTH
    return ""


def _repeated_tile(_context: Context, _field: str, right: np.ndarray, wrong: np.ndarray) -> str:
    """Return a diagnosis if each wrong value is that of the first, or of the previous, 2**k."""
    places = np.flatnonzero(right != wrong)
    if right.ndim != 1 or len(places) == 1 < len(right) - places[0]:
        return ""
    for power in range(4, int(places[0] + 1).bit_length()):
        tile = 1 << power
        start = places[0] - tile  # of the first tile: a list may have had entries before
        for sources in (places % tile, start + (places - start) % tile, places - tile):
            if np.array_equal(wrong[places], right[sources]):
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


def _progress(context: Context, field: str, right: np.ndarray, wrong: np.ndarray) -> str:
    batch = context.case.batch
    if field != "num_computed_tokens_cpu" or batch is None:
        return ""
    values = wrong[right != wrong]
    behind = bool((wrong <= right).all()) and bool(np.isin(values, batch.computed_lens).all())
    return "computed tokens of a continued request not advanced" if behind else ""


def _ids_of_slots(context: Context, _field: str, right: np.ndarray, wrong: np.ndarray) -> str:
    size, where = context.block_size, right != wrong
    same = size > 1 and bool((wrong[where] == (right[where] * size).astype(np.int32)).all())
    return "pages taken for token slots" if same else ""


def _off_by_one_block(_context: Context, _field: str, right: np.ndarray, wrong: np.ndarray) -> str:
    return _ONE_BLOCK if (np.abs(wrong - right)[right != wrong] == 1).all() else ""


def _other_blocks(context: Context, _field: str, right: np.ndarray, wrong: np.ndarray) -> str:
    where = right != wrong
    kinds = _owners(context, right[where].tolist(), wrong[where].tolist())
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


def _lost_slots(context: Context, _field: str, right: np.ndarray, wrong: np.ndarray) -> str:
    where = right != wrong
    if (right[where] == -1).all():
        inside = (np.flatnonzero(where) < context.facts.tokens).all()
        if context.case.params.get("columns") is not None and inside:
            return _BEYOND_ROW
        return "a slot for an entry that must have none"
    return "token without its slot" if (wrong[where] == -1).all() else ""


def _slots_of_others(context: Context, _field: str, right: np.ndarray, wrong: np.ndarray) -> str:
    where, size = right != wrong, context.block_size
    if not size or (right[where] == -1).any():
        return ""
    blocks, others = right[where] // size, wrong[where] // size
    kinds = _owners(context, blocks.tolist(), others.tolist())
    return _OTHER_BLOCK if kinds == {_OTHER_BLOCK} else ""


def about(case: Case, place: Place, index: tuple[int, ...] | None, expected: Any) -> str:
    """Return the request or token of an element in words, "" without a batch."""
    batch = case.batch
    if batch is None:
        return ""
    rows, tokens = batch.num_requests, batch.num_tokens
    lengths = zip(batch.query_lens, batch.computed_lens, strict=True)
    words = [f"a row with {computed} of {computed + query} tokens" for query, computed in lengths]
    size = len(expected) if isinstance(expected, torch.Tensor) and expected.dim() else -1
    if index and place.child is None and place.step is None and rows != tokens:
        if size == rows + batch.padded_requests:
            return f"{words[index[0]]} computed" if index[0] < rows else "a padded row"
        if size in (tokens, tokens + batch.padded_tokens):
            owners = np.repeat(np.arange(rows), batch.query_lens)
            row = owners[index[0]] if index[0] < tokens else None
            return "a padded token" if row is None else f"a token of {words[row]} computed"
    return f"a batch of {_many(rows, 'row')} and {_many(tokens, 'token')}"


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
