"""An operation: everything the harness needs to verify and time one utility of SPEC.md.

Each part has one reader: `inputs` the generators of cases, `call` the worker that calls a
candidate, `contract` the oracles, `bench` the timing, `built_in` the runs of `optimized`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.place import Place
from attnproof.reference.interface import MetadataError

if TYPE_CHECKING:
    from hypothesis.stateful import RuleBasedStateMachine
    from hypothesis.strategies import SearchStrategy


Outputs = dict[Any, Any]
"""Output values by field name, or by `Place` where there are children or steps.

A value is a tensor, an array, a list, a scalar, None or MISSING.
"""


Thunk = Callable[[], Any]
"""Call without arguments, ready to be timed."""


class Missing:
    """Placeholder for a field that an output lacks."""

    def __repr__(self) -> str:
        return "missing"


MISSING = Missing()


class Quantity(Enum):
    """Meaning of the integers that an operation returns."""

    OTHER = auto()
    OFFSETS = auto()
    SLOTS = auto()


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Properties of an input that every diagnosis may read; families add their own."""

    result: Quantity = Quantity.OTHER
    """Meaning of the integers in the fields `result` and `out`."""

    block_size: int = 0
    """Tokens per block, 0 if the input has none."""
    metadata: Any = None
    """Batch metadata among the arguments, None without."""
    spans: tuple[tuple[int, int, int, int], ...] = ()
    """Requests [r0, r1) and tokens [t0, t1) of each slice."""
    tokens: int = 0
    """Tokens that need a slot."""


@dataclass
class Call:
    """Arguments of one call of an operation, and their memory."""

    args: dict[str, Any]
    """Positional arguments by parameter name, in order."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments."""
    arena: Any = None
    """`cases.memory.arena.Arena` of the tensors, None without tensors."""
    plain: dict[str, Any] = field(default_factory=dict)
    """Python objects among the arguments that must not change."""
    written: frozenset[str] = frozenset()
    """Names of the arena's inputs that the operation must write."""
    plain_written: dict[str, Any] = field(default_factory=dict)
    """Python objects that the operation must write, unless it raises."""
    places: dict[str, Place] = field(default_factory=dict)
    """Places of the arena's tensors that belong to a child."""
    facts: Any = None
    """`Facts` of the input, of the type that the operation's family defines."""

    def replace(self, parameter: str, value: Any) -> None:
        """Set the parameter to another value, also in `plain`."""
        arguments = self.kwargs if parameter in self.kwargs else self.args
        arguments[parameter] = value
        if parameter in self.plain:
            self.plain[parameter] = value

    def __getitem__(self, parameter: str) -> Any:
        return self.kwargs[parameter] if parameter in self.kwargs else self.args[parameter]


class Violation(NamedTuple):
    """Violated invariant: the field, and what is wrong with it as a verb phrase."""

    field: str | Place
    text: str
    detail: str = ""
    """First place that shows the violation, as a sentence; "" if field and text suffice."""


def in_child(violations: Iterable[Violation], child: int) -> Iterator[Violation]:
    """Yield the violations with their fields in one child."""
    return (v._replace(field=Place(str(v.field), child=child)) for v in violations)


def in_step(violations: Iterable[Violation], step: int) -> Iterator[Violation]:
    """Yield the violations with their fields in one step of a sequence."""
    return (v._replace(field=Place(str(v.field), step=step)) for v in violations)


@dataclass(frozen=True)
class Fault:
    """A way to malform good input, and the error it must raise (SPEC.md rule 0.6)."""

    parameter: str | tuple[str, ...]
    """Parameter that gets another value, or several that change together."""
    change: Callable[..., Any]
    """Old value, then the values of the parameters in `given`, to the malformed value.

    For several parameters: all old values to a tuple of new ones.
    """
    field: str = ""
    """Field that the error must name; the parameter if empty."""
    error: type[Exception] = MetadataError
    applies: Callable[[Case], bool] = lambda _: True
    """True if the case can be malformed in this way."""
    cpu_only: bool = False
    """True if the check needs tensors on the CPU: on a device it would synchronise."""
    given: tuple[str, ...] = ()
    """Parameters whose values the change needs, too."""

    @property
    def named(self) -> str:
        """Field that the error must name."""
        return self.field or self._parameters[0]

    @property
    def _parameters(self) -> tuple[str, ...]:
        return (self.parameter,) if isinstance(self.parameter, str) else self.parameter

    def malform(self, call: Call) -> None:
        """Replace the parameter's value in the call."""
        changed = self.change(*(call[name] for name in (*self._parameters, *self.given)))
        values = (changed,) if isinstance(self.parameter, str) else changed
        for name, value in zip(self._parameters, values, strict=True):
            call.replace(name, value)


class Line(NamedTuple):
    """One step of a sequence."""

    label: str
    """Description of the step, such as "swap rows 0 and 2"."""
    code: str
    """Python source of the step, which is run and shown in the snippet of a failure."""
    raises: bool = False
    """True if the step is malformed input, which must raise and change nothing."""
    kind: str = ""
    """Kind of the step as the case names it, for diagnoses; "" if no diagnosis reads it."""


class Script(NamedTuple):
    """Program of a sequence: its steps as source that uses the candidate's names."""

    setup: str
    """Source that creates the objects which all steps share."""
    lines: tuple[Line, ...]


class Parts(NamedTuple):
    """The functions and classes that a sequence is run with."""

    names: dict[str, Any]
    own: tuple[str, ...]
    """Names taken from the candidate; the others are the reference's."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The cases of an operation."""

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
    faults: Mapping[str, Fault] = field(default_factory=dict)

    def faults_on(self, device: str) -> dict[str, Fault]:
        """Return the faults that a check can detect on tensors of `device`."""
        return {n: f for n, f in self.faults.items() if device == "cpu" or not f.cpu_only}


class CallKind(Protocol):
    """How an operation is called: a function, a class or a sequence."""

    @property
    def compared_by(self) -> str:
        """Name of the oracle that compares outputs with the reference's."""
        ...

    @property
    def takes_arguments(self) -> bool:
        """True if the call has arguments; else purity, late copies and waits are not judged."""
        ...

    @property
    def isolated(self) -> bool:
        """True if each call is made in a process of its own."""
        ...

    @property
    def repeatable(self) -> bool:
        """True if the function that `bind` returns can be called again on the same input."""
        ...

    def names(self, operation: str) -> tuple[str, ...]:
        """Return the names under which candidates offer the operation."""
        ...

    def offered(self, own: dict[str, Any], ours: dict[str, Any], *, built_in: bool) -> Any:
        """Return the candidate's function, class or parts for `run`, None if it lacks them.

        `own` are the candidate's names, `ours` the reference's; `built_in` is True for the
        reference and for `optimized`.
        """
        ...

    def prepare(self, case: Case, pattern: int, device: str) -> Call:
        """Return a new call; `pattern` (0 or 1) selects the poison of stale data."""
        ...

    def run(self, offered: Any, call: Call) -> Any:
        """Call the function, instantiate and use the class, or run the sequence."""
        ...

    def outputs(self, call: Call, result: Any) -> Outputs:
        """Return the output fields of a result."""
        ...

    def bind(self, offered: Any, call: Call) -> Thunk:
        """Return the call as a function without arguments, to be timed."""
        ...

    def script(self, case: Case) -> Script | None:
        """Return the program of a sequence, None for a function or class."""
        ...


def bound(offered: Any, *args: Any, **kwargs: Any) -> Thunk:
    """Return the call, ready to run; an adapter converts its arguments here, untimed.

    A function of an adapter may have a method `bind(*args, **kwargs)`, which returns the
    engine's own function with the arguments in the engine's form.
    """
    binder = getattr(offered, "bind", None)
    if binder is not None:
        thunk: Thunk = binder(*args, **kwargs)
        return thunk
    return partial(offered, *args, **kwargs)


@dataclass(frozen=True, kw_only=True)
class FunctionCall:
    """A function that is called once."""

    prepare: Callable[[Case, int, str], Call]
    """Case, poison pattern (0 or 1) and device to a fresh call."""
    outputs: Callable[[Call, Any], Outputs]
    """Call and result to output fields."""

    compared_by: ClassVar[str] = "equality"
    takes_arguments: ClassVar[bool] = True
    isolated: ClassVar[bool] = False

    @property
    def repeatable(self) -> bool:
        """False."""
        return False  # the function may read memory that it writes

    def names(self, operation: str) -> tuple[str, ...]:
        """Return the operation's own name."""
        return (operation,)

    def offered(self, own: dict[str, Any], _ours: dict[str, Any], *, built_in: bool) -> Any:  # noqa: ARG002
        """Return the candidate's function."""
        return next(iter(own.values()), None)

    def run(self, offered: Any, call: Call) -> Any:
        """Call the function."""
        return offered(*call.args.values(), **call.kwargs)

    def bind(self, offered: Any, call: Call) -> Thunk:
        """Return the call as a function without arguments."""
        return bound(offered, *call.args.values(), **call.kwargs)

    def script(self, _case: Case) -> None:
        """Return None: a function has no program."""


@dataclass(frozen=True, kw_only=True)
class ClassCall(FunctionCall):
    """A class, or a function that returns one: it is instantiated and then used."""

    use: Callable[[Any, Call], Any]
    """Instantiates the class with the call's arguments, uses it and returns a result."""
    methods: tuple[str, ...] = ()
    """Methods without which a class does not offer the operation."""
    clocked: Callable[[Any, Call], Callable[[], Any]] | None = None
    """Instantiates the class untimed and returns the call to time; by default `use` is timed."""

    @property
    def repeatable(self) -> bool:
        """True if the class is instantiated untimed."""
        return self.clocked is not None

    def offered(self, own: dict[str, Any], ours: dict[str, Any], *, built_in: bool) -> Any:
        """Return the candidate's class unless it is imported from ours or lacks a method."""
        found = next(iter(own.values()), None)
        imported = any(found is value for value in ours.values()) and not built_in
        if self.methods and imported:
            return None
        return found if all(hasattr(found, name) for name in self.methods) else None

    def run(self, offered: Any, call: Call) -> Any:
        """Instantiate the class and use it."""
        return self.use(offered, call)

    def bind(self, offered: Any, call: Call) -> Thunk:
        """Return the call to time as a function without arguments."""
        if self.clocked is not None:
            return self.clocked(offered, call)
        return partial(self.use, offered, call)


def _no_diagnosis(_call: Call, _place: Place, _expected: Any, _got: Any) -> str:
    return ""


@dataclass(frozen=True, kw_only=True)
class Contract:
    """Requirements on the outputs of an operation."""

    invariants: Callable[[Call, Outputs], Iterable[Violation]] | None = None
    """Call and outputs to violations of conditions that need no reference."""
    consume: Callable[[Call, Outputs], Iterable[Violation]] | None = None
    """Call and outputs to wrong reads and writes of a kernel that uses the outputs."""
    tolerant: frozenset[str] = frozenset()
    """Roots of float outputs that are compared with float64 by SPEC.md section 8."""
    for_reference: Callable[[Call], None] | None = None
    """Changes the reference's call in place, so that it writes tolerant fields in float64."""
    may_alias: frozenset[str] = frozenset()
    """Roots of outputs that may be views of an input."""
    may_sync: Callable[[Case], bool] = lambda _: False
    """True if SPEC.md allows the call to wait for the device (oracle 10)."""
    diagnose: Callable[[Call, Place, Any, Any], str] = _no_diagnosis
    """Call, wrong place, expected and actual value to a diagnosis, "" without one."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Cases on which an operation is timed."""

    cases: Callable[[Batch], Iterable[Case]] | None = None
    """Cases of a batch with the arguments that engines use; `from_batch` by default."""
    models: Callable[[], Iterable[tuple[str, Case]]] = tuple
    """Named cases with the heads of published models, small enough for a CPU."""
    never: str = ""
    """Reason why the operation is never timed, "" if it is."""


@dataclass(frozen=True, kw_only=True)
class BuiltIn:
    """Facts about the implementations in `optimized`."""

    kernels: bool = False
    """True if there is an implementation for the device; otherwise only CPU data is read."""
    package: str = ""
    """Package that the implementation imports; without it the verdict is UNVERIFIED."""
    load: Callable[[], None] | None = None
    """Slow imports, called once in a worker before its first timed case."""
    shared: str = ""
    """Reason why both packages have one implementation, "" if each has its own."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One utility of SPEC.md."""

    name: str
    section: str
    """Section of SPEC.md."""
    summary: str
    """Purpose in one line."""
    inputs: Inputs
    call: CallKind
    contract: Contract = field(default_factory=Contract)
    bench: Bench = field(default_factory=Bench)
    built_in: BuiltIn = field(default_factory=BuiltIn)
