"""Diagnosis of a wrong field: the likely cause, derived from how the values differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from attnproof.harness.model.call import MISSING
from attnproof.harness.model.case import Case
from attnproof.harness.model.place import Place
from attnproof.harness.model.verdict import CONSUMER, LOST, Failure
from attnproof.harness.oracles.known_mistakes import Context, Values, implies, known_mistakes

_SHARE = 0.9
"""Share of the failing cases that a known mistake must explain to be the heading."""
_MOST_WORDS = 120
"""Characters of a message that can be a heading."""
_VAGUE = (
    *("attention is wrong", "wrong attention", "wrong slot", "wrong block", "wrong fp8 codes"),
    *("wrong elements of a token", "wrong key or value written"),
)
"""Texts that name no mistake."""


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
    known = [text for text in known if not any(implies(other, text) for other in known)]
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
    values = Values(context, field, right, rest if (rest != right).any() else wrong)
    # Floats may have the same integers.
    return known_mistakes(values) if values.where.any() else (f"{field} is wrong", ())


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
