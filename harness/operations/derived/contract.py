"""The contract that follows from a definition: relations of results, and those of the batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from attnproof.harness.cases.batches.tensors import batch_arrays
from attnproof.harness.consumer.batch import int64_array
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.operation import Contract
from attnproof.harness.model.place import Place
from attnproof.harness.model.relations import Joined, Relations
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.of_batch import of_role
from attnproof.harness.operations.derived.params import key_of
from attnproof.reference.definition.definition import Argument, Definition
from attnproof.reference.definition.roles import CUT_AXES, Array, Int, size_of

_JOINED = {
    "query offsets": Joined.OFFSETS,
    "slots": Joined.TOKENS,
    "positions": Joined.TOKENS,
    "request indices": Joined.ROW_INDICES,
    "token starts": Joined.TOKEN_INDICES,
}
"""Relation of a whole batch's results to those of its parts, by role.

Of other roles (R,) and (T,) are entries."""
Judge = Callable[[Call, Outputs], Iterable[Violation]]


def contract_of(
    definition: Definition, invariants: Judge | None, supplied: Collection[str]
) -> Contract:
    """Return the contract; the values of the arguments `supplied` follow from no role."""
    results, relations = _outputs_of(definition), None
    if definition.independent and not why_not_joined(definition, supplied):
        relations = _relations(definition, supplied)
    return Contract(
        invariants=partial(_violations, definition, invariants, bool(supplied)),
        diagnose=diagnose_float,
        relations=relations,
        tolerances={name: result.tolerance for name, result in results.items() if result.tolerance},
        may_alias=frozenset(name for name, r in results.items() if r.may_alias or r.written),
    )


def why_not_joined(definition: Definition, supplied: Collection[str]) -> str:
    """Return why the results of a batch do not follow from those of its parts, "" if they do."""
    if not definition.has_batch:
        return "no argument has a role of the batch, such as SeqLens"
    if not any(map(_join, _outputs_of(definition).values())):
        return "no result has an entry for each row or token: (R,) or (T,)"
    whole = _not_divided([a for a in definition.arguments if a.name not in supplied])
    return f"{whole} does not follow from a part of the rows" if whole else ""


def _outputs_of(definition: Definition) -> dict[str, Array]:
    """Return the results and the written arguments by name."""
    results = {result.name: result.declared for result in definition.results}
    arrays = {a.name: a.declared for a in definition.arguments if isinstance(a.declared, Array)}
    return results | {name: array for name, array in arrays.items() if array.written}


def _relations(definition: Definition, supplied: Collection[str]) -> Relations:
    results = _outputs_of(definition)
    joined = {name: how for name, result in results.items() if (how := _join(result)) is not None}
    read = [argument for argument in definition.arguments if argument.name not in supplied]
    longer = any(isinstance(a.declared, Array) and a.declared.longer for a in definition.arguments)
    lengths = {results[name].sizes[0].axis for name in joined}
    numbers = [
        a
        for a in read
        if isinstance(a.declared, Int)
        and (a.declared.axis in lengths - {""} or isinstance(a.declared.least, str))
    ]
    return Relations(
        joined=joined,
        alone=({"spare": 0} if longer else {}) | {key_of(number): 0 for number in numbers},
        per_request=frozenset(
            key_of(a) for a in read if isinstance(a.declared, Array) and _is_of_rows(a.declared)
        ),
    )


def _wrong_floats(definition: Definition, _call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Yield a result of another dtype: equality compares those with a tolerance by value."""
    for result in definition.results:
        value, declared = outputs.get(result.name), result.declared
        if not declared.tolerance or not isinstance(value, torch.Tensor):
            continue
        if value.dtype not in (*declared.dtypes, torch.float64):  # float64 is the reference's
            yield Violation(result.name, f"is of {value.dtype}, which is not declared")


def _not_divided(arguments: list[Argument]) -> str:
    """Return an argument that does not follow from those of the whole for a part of the rows."""
    numbers = {a.name for a in arguments if isinstance(a.declared, Int)}
    for argument in arguments:
        declared = argument.declared
        axes = {size_of(end).axis for end in (declared.below, declared.least) if end is not None}
        if isinstance(declared, Array) and declared.is_read and not declared.follows_batch:
            axes |= set() if _is_of_rows(declared) else {size.axis for size in declared.sizes}
        elif isinstance(declared, Int) and (declared.axis or isinstance(declared.least, str)):
            axes = set()  # it is least in the parts
        if axes & {*CUT_AXES, *numbers}:
            return argument.name
    return ""


def _is_of_rows(declared: Array) -> bool:
    """True for a list of the case with an element for each row."""
    return declared.is_free and declared.sizes == (("R", 1, 0),)


def _violations(
    definition: Definition, own: Judge | None, supplied: bool, call: Call, outputs: Outputs
) -> Iterator[Violation]:
    """Judge by `own`, then compare the results that a batch determines with those of the batch."""
    if own is not None:
        yield from own(call, outputs)
    yield from _wrong_floats(definition, call, outputs)
    arrays = [(a.name, a.declared) for a in definition.arguments if isinstance(a.declared, Array)]
    if supplied or any(array.or_empty and not call[name].numel() for name, array in arrays):
        return  # its absence changes what the results are
    for result in definition.results if definition.has_batch else ():
        declared = result.declared
        if not declared.follows_batch or declared.role in ("slots", "block table", "slot pool"):
            continue
        right = of_role(batch_arrays(call.facts.batch), declared.role, 0).astype(np.int64)
        if not np.array_equal(int64_array(outputs[result.name])[: len(right)], right):
            yield Violation(result.name, f"differs from the {declared.role} of the batch")


def _join(declared: Array) -> Joined | None:
    if declared.role in _JOINED:
        return _JOINED[declared.role]
    per_row_or_token = declared.sizes[:1] in ((("R", 1, 0),), (("T", 1, 0),))
    return Joined.ENTRIES if per_row_or_token else None


def diagnose_float(_call: Call, _place: Place, expected: Any, got: Any) -> str:
    """Name a result of floats that is beyond its tolerance, "" for any other mistake."""
    both = isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor)
    if not both or not expected.is_floating_point() or expected.shape != got.shape:
        return ""
    if not got.is_floating_point():
        return ""
    return "beyond the tolerance" if bool(torch.isfinite(got).all()) else "is not finite"
