"""The interfaces under which a failing case would pass: the mistake may be the choice of one."""

from __future__ import annotations

from attnproof.harness.interfaces import DEFAULT, INTERFACES
from attnproof.harness.interfaces.interface import Interface
from attnproof.harness.model.case import Case
from attnproof.harness.model.operation import Operation
from attnproof.harness.running.engines import engine_of
from attnproof.harness.running.task.candidate_process import CandidateUnloadableError
from attnproof.harness.running.task.workers import InvalidCaseError, Worker


def interface_sentence(worker: Worker, operation: Operation, case: Case) -> str:
    """Return a sentence on the interfaces under which the candidate passes, "" without any.

    An adapter has the interface of its engine, and a built-in candidate has all.
    """
    candidate = worker.candidate
    judged = INTERFACES.get(candidate.interface)
    if judged is None or engine_of(candidate.target) is not None or worker.is_hurried:
        return ""
    # Then it is judged by the weakest contract: a case of less would excuse any mistake.
    is_weakest = judged.name == DEFAULT or not candidate.declared
    passing = [
        other.name
        for other in INTERFACES.values()
        if (other.name == DEFAULT or other.has(operation.name, operation.section))
        and not (is_weakest and other.fit(case) != case)
        and (other.adapt is not judged.adapt or other.fit(case) != case)
        and _passes(worker, other, case)
    ]
    # What only further calls show is no matter of an interface.
    if not passing or not worker.judge(case).failures:
        return ""
    *first, last = passing
    names = f"{', '.join(first)} or {last}" if first else last
    return (
        f"Judged in the interface {judged.name} ({candidate.interface_reason}); "
        f"the case passes with --interface {names}."
    )


def _passes(worker: Worker, other: Interface, case: Case) -> bool:
    """True if the candidate passes the case in the other interface."""
    try:
        beside = worker.beside(other.name)
    except CandidateUnloadableError:
        return False
    try:
        failures = beside.judge(beside.in_interface(case)).failures
    except InvalidCaseError:
        return False
    finally:
        beside.stop()
    return not any(failure.kind in worker.candidate.judged for failure in failures)
