"""Cases that nobody draws: boundaries, their faults, and cases of engine steps."""

from __future__ import annotations

import zlib
from collections.abc import Container, Iterable, Iterator, Mapping

import msgspec

from attnproof.harness.model.case import Case, EngineStep, Sourced
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Operation


def explicit_cases(
    operation: Operation,
    faults: Mapping[str, Fault],
    steps: list[EngineStep],
    corpus: Iterable[Sourced],
    left_out: Container[str] = (),
    *,
    with_boundaries: bool = True,
    few: bool = False,
) -> Iterator[Sourced]:
    """Yield boundaries, each fault on some of them, cases of engine steps, and those of `corpus`.

    `left_out` holds ids of boundaries. With `few` a fault gets the smallest boundary alone.
    """
    every = operation.inputs.boundaries() if with_boundaries else ()
    boundaries = [boundary for boundary in every if boundary[1].id not in left_out]
    chosen = {name: _some_of(name, fault, boundaries, few=few) for name, fault in faults.items()}
    for index, (name, case) in enumerate(boundaries):
        yield Sourced(case, "boundary", name)
        for fault in (fault for fault, indices in chosen.items() if index in indices):
            malformed = msgspec.structs.replace(case, fault=fault)
            yield Sourced(malformed, "boundary", f"{name}: {fault}")
    yield from cases_of_steps(operation, steps)
    yield from corpus


def _some_of(name: str, fault: Fault, boundaries: list[tuple[str, Case]], *, few: bool) -> set[int]:
    """Return the indices of the boundaries that get the fault: the smallest, and some others.

    In the smallest, no other request makes up for the malformed one, and code for one token is
    run. The others depend on the name of the fault, so that faults meet all kinds of input: two,
    of which one is strided, if it can be, for every second fault and for those of several
    parameters; one for an argument of a wrong type.
    """
    sizes = {
        index: _size(case) for index, (_, case) in enumerate(boundaries) if fault.applies(case)
    }
    fitting, number = sorted(sizes, key=sizes.__getitem__), zlib.crc32(name.encode())
    if few:
        return {*fitting[:1]}
    others = sorted(fitting[1:])
    chosen = {*fitting[:1], *others[number % max(1, len(others)) :][:1]}
    if fault.error is TypeError:
        return chosen
    batches = {index: boundaries[index][1].batch for index in others}
    strided = [index for index, batch in batches.items() if batch is not None and batch.strided]
    if strided and (number % 2 or isinstance(fault.parameter, tuple)):
        others = strided
    return {*chosen, *others[number // 7 % max(1, len(others)) :][:1]}


def _size(case: Case) -> tuple[int, int]:
    """Return the requests and tokens of a case; without a batch, the length of its parameters."""
    if case.batch is None:
        return len(str(case.params)), 0
    return case.num_requests, case.num_tokens


def cases_of_steps(operation: Operation, steps: list[EngineStep]) -> Iterator[Sourced]:
    """Yield the operation's cases of each step's batch, and those of its calls."""
    for step in steps:
        if step.case is not None and step.case.operation == operation.name:
            yield Sourced(step.case, step.origin, step.source)
        if step.batch is None or (step.batch.no_slots and not operation.inputs.any_slots):
            continue
        for case in operation.inputs.from_batch(step.batch):
            yield Sourced(case, step.origin, step.source)
