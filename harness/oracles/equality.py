"""Oracle 1, equality: every output element equals the reference's (SPEC.md rule 0.7).

Bug classes: wrong values of any kind (K1, K3, K9, K14, K15, K19), fields dropped by a
rebuilt dataclass (K2), lists where tensors were expected (K10), numpy scalars (E1).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from attnproof.harness.cases.batches.later import ROW_KEYS
from attnproof.harness.cases.batches.subclass import ADDED_FIELDS
from attnproof.harness.cases.layers.tolerance import close, farthest, without_infinities
from attnproof.harness.model.call import MISSING, Facts
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.text import float_texts
from attnproof.harness.model.verdict import OVERFLOW, Failure, Kind
from attnproof.harness.operations.shared.metadata import CLASS
from attnproof.harness.oracles.attempt import ATOMS, Attempt
from attnproof.harness.oracles.diagnosis import about, diagnose, is_overflow
from attnproof.harness.oracles.known_mistakes import Context
from attnproof.harness.oracles.trial import Trial
from attnproof.harness.oracles.value_text import as_array, brief, briefs

NAME = "equality"
CONTRACT = "every output element equals the reference's (SPEC.md rule 0.7)"


def judge(trial: Trial) -> Iterator[Failure]:
    """Yield a failure for each field of the first call that differs from the reference's."""
    if trial.operation.call.compared_by != NAME:
        return
    yield from differences(trial, trial.expected, trial.first.outputs, NAME)


def checks(trial: Trial) -> int:
    """Return the number of fields compared."""
    return len(trial.first.outputs) if trial.operation.call.compared_by == NAME else 0


_TENSOR = "Tensor"
"""Class of the tensors that torch makes by itself."""


def differences(
    trial: Trial,
    expected: dict[Place, Any],
    got: dict[Place, Any],
    oracle: str,
    attempt: Attempt | None = None,
) -> Iterator[Failure]:
    """Yield a failure for each field that differs, in the order of the operation's outputs.

    `attempt` is the call that gave them, by default the first one. For a sequence, yield only those
    of the first step that differs.
    """
    attempt = attempt or trial.first
    context: Context | None = None
    wrong_step: int | None = None
    subclasses = {
        place: _TENSOR for place in got.keys() - expected if place.field.endswith(f".{CLASS}")
    }
    for place, right in (expected | subclasses).items():
        value = got.get(place, MISSING)
        # Most values of a sequence are numbers.
        if type(right) in ATOMS and type(value) is type(right) and value == right:
            continue
        if agrees(trial.operation, place, right, value):
            continue
        if wrong_step not in (None, place.step):
            return  # differences of later steps follow from it
        wrong_step = place.step
        facts = attempt.call.facts or Facts()
        context = context or Context(trial.case, facts)
        diagnosis, fits = _diagnosis(trial, attempt, context, place, right, value)
        index, text = difference(trial.operation, place, right, value, facts)
        yield Failure(
            oracle=oracle,
            field=place.root,
            diagnosis=diagnosis,
            fits=fits,
            about=about(trial.case, place, index, right),
            message=text,
            **briefs(as_numbers(right, facts), as_numbers(value, facts)),
            place=place,
            index=index,
            other_kind=_other_kind(trial, place, right, value),
        )


def _other_kind(trial: Trial, place: Place, right: Any, value: Any) -> Kind | None:
    """Return the class of a difference that gives a kernel no other value, None for others."""
    name = place.field.rsplit(".", 1)[-1]
    if name == CLASS or (name in ADDED_FIELDS and (value is None or value is MISSING)):
        return Kind.TYPE
    metadata = getattr(trial.first.call.facts, "metadata", None)  # a sequence has no facts
    if name == ROW_KEYS and value == getattr(metadata, name, None):
        return Kind.TYPE  # kept as a field of the whole batch, as code for an earlier class does
    if place.field == "raises":  # a step that must raise this error, or none
        return Kind.UNSAFE if right is None else Kind.CONTRACT
    if name in trial.operation.contract.unread:
        return Kind.CONTRACT
    return Kind.TYPE if _is_of_another_type(right, value) else None


def _is_of_another_type(right: Any, value: Any) -> bool:
    """True if an integer, or each element of a tensor, has its value in another type."""
    if isinstance(right, torch.Tensor) and isinstance(value, torch.Tensor):
        if right.shape != value.shape or right.device != value.device:
            return False
        whole = all(tensor.dtype in _WHOLE for tensor in (right, value))
        return whole and torch.equal(right.long(), value.long())
    if type(right) in (int, bool) and type(value) is not type(right):
        if not isinstance(value, int | np.integer | np.bool_):
            return isinstance(value, torch.Tensor) and value.numel() == 1 and int(value) == right
        return bool(value == right)
    return False


def _diagnosis(
    trial: Trial, attempt: Attempt, context: Context, place: Place, right: Any, value: Any
) -> tuple[str, tuple[str, ...] | None]:
    """Return the operation's own diagnosis, or the general one, and `Failure.fits`."""
    if right is _TENSOR:
        return f"{value} where a plain tensor was expected", None
    try:
        if is_overflow(right, value):
            return OVERFLOW, None
        own = trial.operation.contract.diagnose(attempt.call, place, right, value)
        with np.errstate(all="ignore"):  # wrong values may be of any size
            return diagnose(context, place.field, right, value, own)
    except Exception:  # a value that no diagnosis was written for is wrong nevertheless
        return f"{place.field} is wrong", ()


def difference(
    operation: Operation, place: Place, expected: Any, got: Any, facts: Any = None
) -> tuple[tuple[int, ...] | None, str]:
    """Return the index of the first wrong element, None without one, and the message.

    `facts` are the `Facts` of the call.
    """
    index = _wrong_index(operation, place, expected, got)
    numbers = as_numbers(expected, facts), as_numbers(got, facts)
    right, wrong = _elements(*numbers, index)
    if right == wrong:  # NaN of two kinds
        right, wrong = _elements(expected, got, index)
    return index, f"{place}{_bracket(index)} is {wrong}, expected {right}"


def _elements(expected: Any, got: Any, index: tuple[int, ...] | None) -> tuple[str, str]:
    """Return the two elements at `index` as text, the values in brief without an index."""
    arrays = as_array(expected), as_array(got)
    values = [array[index] for array in arrays if array is not None and index is not None]
    if len(values) == 2 and all(isinstance(value, np.floating) for value in values):
        return float_texts(*values)
    return element(expected, index), element(got, index)


def as_numbers(value: Any, facts: Any) -> Any:
    """Return an output as floats if it holds their words, as `Facts.numbers` says."""
    dtype = getattr(facts, "numbers", None)
    if dtype is None or not isinstance(value, torch.Tensor) or value.dtype.is_floating_point:
        return value
    return value.view(dtype) if value.itemsize == dtype.itemsize else value


def agrees(operation: Operation, place: Place, expected: Any, got: Any) -> bool:
    """True if the field is equal, or close enough if it is tolerant and expected in float64.

    Raise ValueError if a tolerant field of SPEC.md section 8 is expected to hold NaN or infinity:
    no result of such a case is right, so that it judges nobody.
    """
    if not is_tolerant(operation, place, expected):
        return same(expected, got)
    tolerance = operation.contract.tolerances.get(place.root)
    if tolerance is not None:
        expected, got = without_infinities(expected, got)
        # An infinity that is left is one that the result does not have.
        return bool(torch.isfinite(expected).all()) and close(expected, got, tolerance)
    if not bool(torch.isfinite(expected).all()):
        raise ValueError(f"the reference's {place} is not finite: the case has no right result")
    return close(expected, got)


def _wrong_index(
    operation: Operation, place: Place, expected: Any, got: Any
) -> tuple[int, ...] | None:
    """Return the index of the first wrong element, of the farthest one in a tolerant field."""
    if is_tolerant(operation, place, expected) and isinstance(got, torch.Tensor):
        return farthest(*without_infinities(expected, got))
    return first_difference(expected, got)


def is_tolerant(operation: Operation, place: Place, expected: Any) -> bool:
    """True if the field is compared with a tolerance."""
    if not isinstance(expected, torch.Tensor):
        return False
    if place.root in operation.contract.tolerances:
        return expected.dtype.is_floating_point
    return place.root in operation.contract.tolerant and expected.dtype == torch.float64


def same(expected: Any, got: Any) -> bool:
    """True if type, dtype, shape, device and values are equal.

    Integers are never converted to floats. NaN equals NaN, whatever its bits: no operation
    promises them. Where they matter, as in a cache, outputs are integers.
    """
    if isinstance(expected, torch.Tensor):
        return (
            isinstance(got, torch.Tensor)
            and expected.dtype == got.dtype
            and expected.device == got.device
            and expected.shape == got.shape
            and (torch.equal(words(expected), words(got)) or _same_but_for_nan(expected, got))
        )
    if isinstance(expected, np.ndarray):
        return (
            isinstance(got, np.ndarray)
            and expected.dtype == got.dtype
            and np.array_equal(expected, got, equal_nan=expected.dtype.kind == "f")
        )
    if type(expected) is not type(got):
        return False
    if isinstance(expected, list | tuple):
        # Where a list may hold tensors, `==` would have to reduce their comparison to a bool.
        if is_flat(expected) and is_flat(got) and expected == got:
            return True
        return len(expected) == len(got) and all(map(_same_items, expected, got))
    if isinstance(expected, dict):
        return expected.keys() == got.keys() and all(
            _same_items(value, got[key]) for key, value in expected.items()
        )
    return _same_atoms(expected, got)


def _same_but_for_nan(expected: torch.Tensor, got: torch.Tensor) -> bool:
    """True if two tensors of one dtype and shape have the same words where neither is NaN."""
    if not expected.is_floating_point():
        return False
    nan = [tensor.double().isnan() for tensor in (expected, got)]  # fp8 has no `isnan`
    equal = words(expected) == words(got)
    return bool((equal | nan[0] & nan[1]).all())


def _same_atoms(expected: Any, got: Any) -> bool:
    if expected == got:
        return True
    return all(
        isinstance(value, float | np.floating) and np.isnan(value) for value in (expected, got)
    )


_HOLDERS = (torch.Tensor, np.ndarray, list, tuple, dict)


def is_flat(values: Any) -> bool:
    """True if no item of a list or tuple holds others."""
    return ATOMS.issuperset(map(type, values))


def _same_items(expected: Any, got: Any) -> bool:
    """True if two items of a list, tuple or dict are equal; the types of numbers do not count."""
    if isinstance(expected, _HOLDERS) or isinstance(got, _HOLDERS):
        return same(expected, got)
    return _same_atoms(expected, got)


_WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def words(tensor: torch.Tensor) -> torch.Tensor:
    """Return floats and bools as integers of their size.

    Then NaN equals itself, -0.0 is not 0.0, and a bool that holds the byte 2 is not True.
    """
    as_words = tensor.is_floating_point() or tensor.dtype is torch.bool
    return tensor.view(_WORDS[tensor.itemsize]) if as_words else tensor


def first_difference(expected: Any, got: Any) -> tuple[int, ...] | None:
    """Return the index of the first wrong element, None if the two cannot be compared by index."""
    right, wrong = as_array(expected), as_array(got)
    if right is None or wrong is None or right.ndim != wrong.ndim:
        return None
    common = tuple(slice(0, min(a, b)) for a, b in zip(right.shape, wrong.shape, strict=True))
    right, wrong = right[common], wrong[common]
    # NaN equals NaN, as in `same`.
    unequal = np.argwhere((right != wrong) & ((right == right) | (wrong == wrong)))  # noqa: PLR0124
    return tuple(int(i) for i in unequal[0]) if len(unequal) else None


def element(value: Any, index: tuple[int, ...] | None) -> str:
    """Return the element at `index` as text, or without an index the whole value in brief."""
    array = as_array(value)
    if index is None or array is None:
        return brief(value)
    return str(array[index])


def _bracket(index: tuple[int, ...] | None) -> str:
    return "" if index is None else str(list(index))
