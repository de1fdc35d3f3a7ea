"""An operation: everything the harness knows about one utility of SPEC.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from attnproof.harness.model.case import Batch, Case

if TYPE_CHECKING:
    from hypothesis.stateful import RuleBasedStateMachine
    from hypothesis.strategies import SearchStrategy


Outputs = dict[str, Any]
"""Output fields by name: tensors, arrays, lists, scalars, None."""


class Missing:
    """Stands for a field that an output should have and does not."""

    def __repr__(self) -> str:
        return "missing"


MISSING = Missing()


@dataclass
class Call:
    """One call of an operation: its arguments, and the memory they lie in."""

    args: list[Any]
    kwargs: dict[str, Any] = field(default_factory=dict)
    arena: Any = None
    """The `cases.memory.arena.Arena` that its tensors lie in, None without tensors."""
    plain: dict[str, Any] = field(default_factory=dict)
    """Python objects among the arguments that must not change."""
    written: frozenset[str] = frozenset()
    """Inputs of the arena that the operation is asked to write."""
    plain_written: dict[str, Any] = field(default_factory=dict)
    """Python objects that the operation is asked to write, and that an error leaves alone."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What invariants and outputs need to know about the input."""


class Breach(NamedTuple):
    """A broken invariant: which field, and what should have held."""

    field: str
    text: str
    detail: str = ""
    """Where it shows, as a sentence; "" if field and text say it all."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A way to spoil good input, and the error it must get (SPEC.md rule 0.6)."""

    field: str
    """The field that the error names."""
    spoil: Callable[[Call], None]
    """Changes the call in place."""
    error: type[Exception]
    applies: Callable[[Case], bool] = lambda _: True
    """Whether a case can be spoilt in this way."""
    cpu_only: bool = False
    """Whether it can only be seen where reading the input needs no synchronisation."""


class Line(NamedTuple):
    """One step of a sequence."""

    label: str
    """The step in words, such as "swap rows 0 and 2"."""
    code: str
    """The step as Python source: what is run is what a snippet shows."""
    raises: bool = False
    """Whether it is bad input, which must get its error and change nothing."""


class Script(NamedTuple):
    """A sequence of steps as a program over the names that a candidate offers."""

    setup: str
    """Source that makes the objects which live through all steps."""
    lines: tuple[Line, ...]


class Parts(NamedTuple):
    """The functions and classes that a sequence is played with."""

    names: dict[str, Any]
    own: tuple[str, ...]
    """Those that the candidate offers; the others are the reference's."""


@dataclass(frozen=True, kw_only=True)
class Sequence:
    """Many steps through the same persistent objects: how they are drawn, told and looked at.

    The case holds the steps as numbers in its parameter `steps`. Any list of steps makes
    sense (a step that does not apply is left out), so that dropping some shrinks it.
    """

    parts: tuple[str, ...]
    """Names that the script uses: the candidate's, the reference's where it offers none."""
    machine: type[RuleBasedStateMachine]
    """Draws the steps (`attnproof.harness.cases.machine.Machine`)."""
    script: Callable[[Case, int], Script]
    """Case and stale pattern (0 or 1) to the program."""
    observe: Callable[[dict[str, Any]], Outputs]
    """Everything to compare after a step, from the program's variables, stale places left out."""
    isolated: bool = False
    """Whether the steps change what the process keeps: each sequence then gets its own."""


def called(offered: Any, call: Call) -> Any:
    """Call a function: how most operations are put to use."""
    return offered(*call.args, **call.kwargs)


def bound(offered: Any, *args: Any, **kwargs: Any) -> Callable[[], Any]:
    """The call, ready to run; what an adapter converts is converted now and not timed.

    An adapter's function may have a method `bind(*args, **kwargs)`, which returns the
    engine's own function with the arguments as the engine takes them.
    """
    binder = getattr(offered, "bind", None)
    if binder is not None:
        thunk: Callable[[], Any] = binder(*args, **kwargs)
        return thunk
    return partial(offered, *args, **kwargs)


def _no_diagnosis(_call: Call, _field: str, _expected: Any, _got: Any) -> str:
    return ""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One utility: how to make its inputs, call it, read its outputs and judge them."""

    name: str
    section: str
    """Section of SPEC.md."""
    summary: str
    """What it is for, in one line."""
    cases: Callable[[], SearchStrategy[Case]]
    """Well-formed cases for Hypothesis."""
    boundaries: Callable[[], Iterable[tuple[str, Case]]]
    """Named cases that are always run."""
    large: Callable[[], Iterable[tuple[str, Case]]] = tuple
    """Named cases of real size, which only a GPU computes in reasonable time."""
    from_batch: Callable[[Batch], Iterable[Case]]
    """The cases of a batch that an engine ran."""
    timed: Callable[[Batch], Iterable[Case]] | None = None
    """Its cases where it is timed, with the arguments that engines use; `from_batch` without."""
    timed_models: Callable[[], Iterable[tuple[str, Case]]] = tuple
    """Named cases with the heads of published models, small enough to be timed on a CPU."""
    untimed: str = ""
    """Why it is never timed, "" if it is."""
    clocked: Callable[[Any, Call], Callable[[], Any]] | None = None
    """Of a class: makes one now, and returns what a clock runs; without it all of `run`."""
    prepare: Callable[[Case, int, str], Call]
    """Case, stale pattern (0 or 1) and device to a fresh call."""
    outputs: Callable[[Call, Any], Outputs]
    """The call and its result to output fields."""
    run: Callable[[Any, Call], Any] = called
    """Puts what the candidate offers to use: a function is called, a class made and driven."""
    invariants: Callable[[Call, Outputs], Iterable[Breach]] | None = None
    """What must hold of the outputs whatever the reference says."""
    consume: Callable[[Call, Outputs], Iterable[Breach]] | None = None
    """What a kernel that trusts the outputs would see, judged without a reference (oracle 8)."""
    tolerant: frozenset[str] = frozenset()
    """Float output fields, compared with the reference's float64 by SPEC.md section 8."""
    for_reference: Callable[[Call], None] | None = None
    """Changes the reference's call in place: float64 where it writes a tolerant field."""
    shares: frozenset[str] = frozenset()
    """Output fields that may be views of an input."""
    faults: dict[str, Fault] = field(default_factory=dict)
    kernels: bool = False
    """Whether it has a device path of its own; otherwise it only reads the CPU."""
    syncs: Callable[[Case], bool] = lambda _: False
    """Whether SPEC.md lets the call wait for the device; judged on a GPU (oracle 10)."""
    package: str = ""
    """What `optimized` must import to do it its own way; without it there is no verdict on that."""
    get_ready: Callable[[], None] | None = None
    """Done once in a worker before its first case, which is timed: a slow import."""
    methods: tuple[str, ...] = ()
    """What a class must have to offer the operation, so that it can be put to use."""
    shared: str = ""
    """Why both packages have the interface's one implementation, "" if each has its own."""
    diagnose: Callable[[Call, str, Any, Any], str] = _no_diagnosis
    """The call, a wrong field, expected and got to words of the domain, "" if it knows none."""
    sequence: Sequence | None = None
    """Set for an operation of many steps."""

    def faults_on(self, device: str) -> dict[str, Fault]:
        """The faults that can be seen where the tensors lie on `device`."""
        return {n: f for n, f in self.faults.items() if device == "cpu" or not f.cpu_only}
