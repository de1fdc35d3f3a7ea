"""A call of an operation: its arguments, its outputs, and facts about the input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from attnproof.harness.model.place import Place

Outputs = dict[Any, Any]
"""Output values by field name, or by `Place` where there are children or steps.

A value is a tensor, an array, a list, a scalar, None or MISSING.
"""


class Free:
    """Values that the contract leaves free, all equal: only invariants judge them."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Free)

    def __hash__(self) -> int:
        return hash(Free)

    def __repr__(self) -> str:
        return f"{self.values}"


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
    numbers: Any = None
    """Dtype of the floats whose words are compared as integers, None without such outputs."""


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
    observed: dict[str, Any] = field(default_factory=dict)
    """Lists, tuples, strings and numbers that the run of the call notes for the contract."""

    def replace(self, parameter: str, value: Any) -> None:
        """Set the parameter to another value, also in `plain`."""
        arguments = self.kwargs if parameter in self.kwargs else self.args
        arguments[parameter] = value
        if parameter in self.plain:
            self.plain[parameter] = value

    def __getitem__(self, parameter: str) -> Any:
        return self.kwargs[parameter] if parameter in self.kwargs else self.args[parameter]
