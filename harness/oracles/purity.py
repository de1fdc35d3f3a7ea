"""Oracle 3, purity: no input is modified, memory is shared where allowed, and only there (0.3).

Bug classes: rows that are views of each other (K12), a setter on the caller's own
object (E10), metadata that changes when a later step reuses a buffer, or that does not
change with the buffer whose address a captured graph holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import torch

from attnproof.harness.model.place import Place, place_of
from attnproof.harness.model.verdict import COPIES, SHARES, Failure, Kind
from attnproof.harness.oracles.attempt import Attempt
from attnproof.harness.oracles.equality import words
from attnproof.harness.oracles.trial import Trial
from attnproof.reference.interface.fields import kept_fields

NAME = "purity"
CONTRACT = "no input is modified, and outputs share memory where allowed only (rule 0.3)"


def judge(trial: Trial) -> Iterator[Failure]:
    """Yield a failure for each modified input and each output that must not share its memory."""
    yield from modified_inputs(trial.first, NAME)
    arena, outputs, contract = trial.first.call.arena, trial.first.outputs, trial.operation.contract
    if arena is None:
        return
    views = frozenset[str]() if contract.is_new(trial.case) else contract.may_alias
    kept = _kept_fields(trial.first)
    for name, value in outputs.items():
        if isinstance(value, torch.Tensor) and name.root not in views:
            owner = arena.owner(value)
            if owner is not None:
                yield _shared(name, owner, SHARES, kept)
    if not trial.case.fault:
        yield from _copies(trial)
        yield from _shared_outputs(outputs, trial.expected, contract.may_alias, kept)


def _kept_fields(attempt: Attempt) -> frozenset[str]:
    """Return the fields of the given batch that nothing writes before its step ends.

    A result lives as long as its batch, so what the engine writes between steps does not count.
    """
    metadata = getattr(attempt.call.facts, "metadata", None)
    kept = kept_fields(type(metadata)) if is_dataclass(metadata) else frozenset[str]()
    return kept - attempt.call.written


def _shared(name: Place, owner: str | Place, diagnosis: str, kept: frozenset[str]) -> Failure:
    """Return the failure of an output in other memory: advice if nothing writes either."""
    failure = _failure(name, diagnosis, f"is stored in the memory of {owner}")
    if not {name.field, place_of(owner).field} <= kept:
        return failure
    message = f"{failure.message}; nothing writes either before the step ends"
    return msgspec.structs.replace(failure, message=message, other_kind=Kind.CONTRACT)


def _copies(trial: Trial) -> Iterator[Failure]:
    """Yield a failure for each output that has the values of an input, but not its memory."""
    attempt, expected = trial.first, trial.expected
    for name, owner in trial.kept.items():
        value = attempt.outputs.get(name)
        if not isinstance(value, torch.Tensor) or attempt.call.arena.owner(value) == owner:
            continue
        if value.shape == expected[name].shape:
            yield _failure(name, COPIES, f"is a copy, expected the memory of {owner}")


def checks(trial: Trial) -> int:
    """Return the number of checks: one for the inputs, one per output; 0 for a sequence."""
    return 1 + len(trial.first.outputs) if trial.operation.call.takes_arguments else 0


def modified_inputs(
    attempt: Attempt, oracle: str, *, after_error: bool = False
) -> Iterator[Failure]:
    """Yield a failure for each tensor and Python object that the call modified.

    With `after_error` the inputs that the operation may write must be unchanged too.
    """
    call, diagnosis = attempt.call, "written before the error" if after_error else "input modified"
    written = frozenset() if after_error else call.written
    other = set()  # tensors that hold other values now
    for intrusion in call.arena.unexpected_writes(written) if call.arena else ():
        if intrusion.inside:
            other.add(intrusion.name)
            place = call.places.get(intrusion.name, Place(intrusion.name))
            where = f"{intrusion.name} (word {intrusion.word})"
            yield _failure(place, diagnosis, f"was modified at {where}", oracle)
    for change in attempt.changes:
        if change.name not in other and (after_error or not change.allowed):
            place = call.places.get(change.name, Place(change.name))
            yield _failure(place, diagnosis, change.text, oracle)


def _shared_outputs(
    outputs: dict[Place, Any],
    expected: dict[Place, Any],
    views: frozenset[str],
    kept: frozenset[str],
) -> Iterator[Failure]:
    """Yield a failure for each output in the memory of another one, where the reference's is not.

    Outputs of `views` are left out, those of two steps of a sequence, and the mirror of a tensor on
    the CPU, which may be the tensor itself.
    """
    ours = set(_overlaps(expected, views))
    for place, other in _overlaps(outputs, views):
        children = place.child != other.child
        allowed = (place, other) in ours or place.step != other.step
        if not allowed and (children or not _are_twins(place, other)):
            diagnosis = f"shares memory with {'a sibling' if children else 'another result'}"
            yield _shared(place, other, diagnosis, kept)


def _are_twins(place: Place, other: Place) -> bool:
    return f"{place.field}_cpu" == other.field or f"{other.field}_cpu" == place.field


def _overlaps(outputs: dict[Place, Any], views: frozenset[str]) -> Iterator[tuple[Place, Place]]:
    """Yield outputs of which one lies in the memory of the other, in the order of the outputs."""
    order = {name: number for number, name in enumerate(outputs)}
    ranges = sorted(
        (value.data_ptr(), value.data_ptr() + _span(value), order[name], name)
        for name, value in outputs.items()
        if isinstance(value, torch.Tensor) and name.root not in views and value.numel()
    )
    for (_, stop, *_, place), (start, *_, other) in pairwise(ranges):
        if start < stop and _share_elements(outputs[place], outputs[other]):
            yield min(place, other, key=order.__getitem__), max(place, other, key=order.__getitem__)


def _share_elements(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """True if tensors whose ranges overlap have an element in common, as columns have none."""
    if (tensor.is_contiguous() and other.is_contiguous()) or not (tensor.is_cpu and other.is_cpu):
        return True
    # numpy has no floats of 8 bits and no bfloat16
    return np.shares_memory(words(tensor).numpy(), words(other).numpy())


def _span(tensor: torch.Tensor) -> int:
    """Return the bytes from the tensor's first element to its last one."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((size - 1) * step for size, step in steps)) * tensor.element_size()


def _failure(name: str | Place, diagnosis: str, text: str, oracle: str = NAME) -> Failure:
    return Failure(
        oracle=oracle,
        field=place_of(name).root,
        diagnosis=diagnosis,
        message=f"{name} {text}",
        place=place_of(name),
    )
