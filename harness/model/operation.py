"""An operation: everything the harness needs to verify and time one utility of SPEC.md.

Each part has one reader: `inputs` the generators of cases, `call` the worker that calls a
candidate, `contract` the oracles, `bench` the timing, `built_in` the runs of `optimized`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import CallKind
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.place import Place
from attnproof.harness.model.relations import Relations
from attnproof.harness.model.timing import Work
from attnproof.harness.model.verdict import ENGINE, Failure, Kind
from attnproof.harness.model.violation import Violation

if TYPE_CHECKING:
    from hypothesis.stateful import RuleBasedStateMachine
    from hypothesis.strategies import SearchStrategy


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The cases of an operation."""

    params: type[msgspec.Struct]
    """Type of `Case.params`; its ranges contain all cases below."""
    unreal: Callable[[Case], str] = lambda _: ""
    """Function from a well-formed case to why no engine makes it, "" if one may; the batch is
    looked at in any case."""
    problem: Callable[[Case], str] = lambda _: ""
    """Function from a case of the right types to why it cannot be run, "" if it can."""
    has_batch: bool = True
    """True if every case has a batch, False if none has."""
    cases: Callable[[], SearchStrategy[Case]]
    """Well-formed cases for Hypothesis."""
    machine: type[RuleBasedStateMachine] | None = None
    """State machine that draws the steps of a sequence (`cases.machine.Machine`), None without."""
    boundaries: Callable[[], Iterable[tuple[str, Case]]]
    """Named cases that are always run."""
    large: Callable[[], Iterable[tuple[str, Case]]] = tuple
    """Named cases of real size, which only a GPU computes in reasonable time."""
    from_batch: Callable[[Batch], Iterable[Case]]
    """Cases of a batch that an engine ran."""
    any_slots: bool = False
    """True if the batches may be of layers that write no cache by slots too (`no_slots`)."""
    whole_contexts: bool = False
    """True if a case lays out an entry for each token of a context: contexts stay short then."""
    faults: Mapping[str, Fault] = field(default_factory=dict)

    def faults_on(self, device: str) -> dict[str, Fault]:
        """Return the faults that a check can detect on tensors of `device`."""
        return {n: f for n, f in self.faults.items() if device == "cpu" or not f.cpu_only}


Diagnose = Callable[[Call, Place, Any, Any], str | tuple[str, ...]]
"""Function from call, wrong place, expected and actual value to the known mistakes that each
explain every wrong element; "" or () if there is none."""


def _no_diagnosis(_call: Call, _place: Place, _expected: Any, _got: Any) -> str:
    return ""


@dataclass(frozen=True, kw_only=True)
class Contract:
    """Requirements on the outputs of an operation."""

    invariants: Callable[[Call, Outputs], Iterable[Violation]] | None = None
    """Function from call and outputs to violations of conditions that need no reference."""
    consume: Callable[[Call, Outputs], Iterable[Violation]] | None = None
    """Function from call and outputs to wrong reads and writes of a kernel that uses them."""
    relations: Relations | None = None
    """How the outputs of related batches follow from each other, None if unknown."""
    tolerant: frozenset[str] = frozenset()
    """Roots of float outputs that are compared with float64 by SPEC.md section 8."""
    tolerances: Mapping[str, float] = field(default_factory=dict)
    """Largest relative error of further float outputs, by root; the reference's are exact."""
    for_reference: Callable[[Call], None] | None = None
    """Function that changes the reference's call in place to write tolerant fields in float64."""
    may_alias: frozenset[str] = frozenset()
    """Roots of outputs that may be views of an input."""
    is_new: Callable[[Case], bool] = lambda _: False
    """True if no output of the case may be a view, those of `may_alias` neither."""
    unread: frozenset[str] = frozenset()
    """Output fields that no kernel and no later operation of an engine reads."""
    may_sync: Callable[[Case], bool] = lambda _: False
    """True if SPEC.md allows the call to wait for the device (oracle 10)."""
    causes_first: bool = False
    """True if the wrong outputs of a step follow from the first of them."""
    diagnose: Diagnose = _no_diagnosis
    uncompared: Callable[[Outputs], str] | None = None
    """Function from outputs to a clause on what of them is not compared, "" if all is."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Cases on which an operation is timed."""

    cases: Callable[[Batch], Iterable[Case]] | None = None
    """Cases of a batch with the arguments that engines use; `from_batch` by default."""
    models: Callable[[], Iterable[tuple[str, Case]]] = tuple
    """Named cases with the heads of published models, small enough for a CPU."""
    served: Callable[[], Iterable[tuple[str, Case]]] = tuple
    """Named cases of the size that one GPU serves. The process that times them computes the
    reference on the device: on the host it would take minutes."""
    work: Callable[[Call, Any], Work] | None = None
    """Function from a call and its result to the bytes and floating-point operations that it
    needs; None if its time is not that of memory or arithmetic."""
    never: str = ""
    """Reason why the operation is never timed, "" if it is."""


@dataclass(frozen=True, kw_only=True)
class BuiltIn:
    """Facts about the implementations in `optimized`."""

    kernels: bool = False
    """True if there is an implementation for the device; otherwise only CPU data is read."""
    package: str = ""
    """Package that the implementation imports; without it the verdict is UNVERIFIED."""
    load: Callable[[], None] = lambda: None
    """Function that makes slow imports, called before a process runs or times its first case."""
    malformed_steps: bool = False
    """True if steps of the sequence must be refused: then it is judged with checks only."""
    absent: str = ""
    """Reason why neither package offers it, "" if both may."""
    shared: str = ""
    """Reason why both packages have one implementation, "" if each has its own."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One utility of SPEC.md."""

    name: str
    section: str
    """Section of SPEC.md, "" for an operation that a user has defined."""
    summary: str
    """Purpose in one line."""
    inputs: Inputs
    call: CallKind
    contract: Contract = field(default_factory=Contract)
    bench: Bench = field(default_factory=Bench)
    built_in: BuiltIn = field(default_factory=BuiltIn)

    @property
    def specification(self) -> str:
        """Name of its specification: a section of SPEC, or its reference for a user's own."""
        return f"SPEC section {self.section}" if self.section else "its reference"

    def why_unreal(self, case: Case) -> str:
        """Return why no engine makes the case, "" if one may."""
        fault = self.inputs.faults.get(case.fault)
        if case.fault and not (fault and fault.is_real):
            return "an engine makes no such input"
        return (case.batch.unreal if case.batch else "") or self.inputs.unreal(case)

    def real_kinds(self, case: Case, failures: tuple[Failure, ...]) -> tuple[Failure, ...]:
        """Return the failures of a case with the classes that they have on it.

        What fails a candidate of an engine is a contract's on a case that no engine makes.
        """
        if not self.why_unreal(case):
            return failures
        return tuple(
            msgspec.structs.replace(failure, other_kind=Kind.CONTRACT)
            if failure.kind in ENGINE
            else failure
            for failure in failures
        )
