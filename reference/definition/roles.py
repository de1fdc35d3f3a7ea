"""Declarations of arguments and results: what an array or a number means, its sizes and values.

A declaration stands in an annotation: `Annotated[torch.Tensor, Array("positions")]`. The aliases
below are those of the usual arguments of a batch, so that a signature reads
`def positions(query_start_loc: Offsets, seq_lens: SeqLens, nnz: NumTokens) -> Positions`.

Axes: R is the number of rows (requests, padded ones too), T the number of query tokens, W the
width of the block table, P and C rows and columns of a pool of requests' slots. Any other name is
that of an integer argument, whose value it is, or an axis of the operation's own: it has the value
of the argument that is declared `Int(axis="N")`, or the size of the arrays that name it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, TypeVar

import torch

Role = Literal[
    "query offsets",
    "query lengths",
    "computed lengths",
    "sequence lengths",
    "block table",
    "slots",
    "positions",
    "request indices",
    "token starts",
    "pool rows",
    "slot pool",
    "numbers",
    "flags",
    "data",
]
"""Meaning of the elements of an array; "numbers", "flags" and "data" follow from no batch."""
Amount = Literal[
    "requests", "tokens", "block size", "longest query", "longest sequence", "axis", "number"
]
"""Meaning of an integer; "number" follows from no batch."""
Bound = int | str
"""A number, an axis such as "R" or "R+1", or the name of an integer argument."""

CUT_AXES: Final = ("R", "T", "W")
"""Axes that are other ones for a part of a batch."""
POOL_AXES: Final = ("P", "C")
BY_VALUES: Final = "?"
"""Size of a result that the values decide."""
ANY_SHAPE: Final = ("...",)
"""Shape of an array with any number of dimensions."""
INTEGERS: Final = (torch.int32, torch.int64)
OF_SHAPES: Final = "__attnproof_of_shapes__"
_Condition = TypeVar("_Condition", bound=Callable[..., Any])
_SIZE = re.compile(r"(?:(\d+)\*)?([A-Za-z]\w*)(?:\+(\d+))?")


def of_shapes(condition: _Condition) -> _Condition:
    """Mark a condition that reads shapes, dtypes and devices only: it judges device tensors too."""
    setattr(condition, OF_SHAPES, True)
    return condition


class Size(NamedTuple):
    """The size `times * axis + more` of a dimension; a constant `more` without an axis."""

    axis: str
    times: int
    more: int

    def value(self, sizes: dict[str, int]) -> int:
        """Return the size; raise KeyError if the axis is not known."""
        return self.more + (self.times * sizes[self.axis] if self.axis else 0)


@cache
def size_of(expression: Bound) -> Size:
    """Parse a size such as 3, "R", "R+1" or "2*N"; raise ValueError."""
    if isinstance(expression, int):
        return Size("", 0, expression)
    if expression == BY_VALUES:
        return Size(BY_VALUES, 1, 0)
    match = _SIZE.fullmatch(expression)
    if match is None:
        raise ValueError(f"{expression!r} is no size: write 3, 'N', 'N+1' or '2*N'")
    return Size(match[2], int(match[1] or 1), int(match[3] or 0))


_SHAPES: Final[dict[str, tuple[Bound, ...]]] = {
    "query offsets": ("R+1",),
    "query lengths": ("R",),
    "computed lengths": ("R",),
    "sequence lengths": ("R",),
    "block table": ("R", "W"),
    "slots": ("T",),
    "positions": ("T",),
    "request indices": ("T",),
    "token starts": ("R",),
    "pool rows": ("R",),
    "slot pool": ("P", "C"),
}
_DTYPES: Final[dict[str, tuple[torch.dtype, ...]]] = {
    "slots": (torch.int64,),
    "flags": (torch.bool,),
    "data": (torch.float32,),
}


@dataclass(frozen=True)
class Array:
    """A tensor among the arguments or results."""

    role: Role = "numbers"
    shape: tuple[Bound, ...] = ()
    """Size of each dimension; that of the role if empty. "?" in a result: the values decide.
    `ANY_SHAPE`: any number of dimensions; cases need `values` of such an argument."""
    dtype: torch.dtype | tuple[torch.dtype, ...] = ()
    """Allowed dtypes, the usual one first; by default int32 and int64, and which of them follows
    from the batch if the values do. Slots are int64, flags bool, data float32."""
    dtype_of: str = ""
    """Name of an array before it, whose dtype it has."""
    least: Bound | None = None
    """Least value of an element; of a written array: of what it holds before the call."""
    below: Bound | None = None
    """Limit that every element is below."""
    distinct: bool = False
    """True if no two elements are equal but those below 0, which stand for none."""
    written: bool = False
    """True for an argument that the operation fills; its memory is apart from all others."""
    may_be: str = ""
    """Argument whose memory a written array may be, from the first element to the last."""
    longer: bool = False
    """True if the first dimension may have entries behind its size, which are neither read nor
    written."""
    dense: bool = False
    """True if there is no gap between the elements of the last dimension."""
    column: bool = False
    """True if (N, 1) is right where the shape is (N,)."""
    on_cpu: bool = False
    """True for a tensor on the CPU whatever the device of the call."""
    tolerance: float = 0.0
    """Largest error of a result of floats, relative to the norm of its last dimension (of single
    elements: 8 times that); the reference computes in float64."""
    or_empty: bool = False
    """True if an array without elements stands for none."""
    may_alias: bool = False
    """True for a result that may be a view of an argument."""

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.shape or _SHAPES.get(self.role, ())))
        dtypes = "|".join(str(dtype).removeprefix("torch.") for dtype in self.dtypes)
        return f"<{'written ' * self.written}{self.role} ({sizes}) {dtypes}>"

    @property
    def sizes(self) -> tuple[Size, ...]:
        """Size of each dimension; empty if there may be any number."""
        shape = () if self.has_any_shape else self.shape or _SHAPES.get(self.role, ())
        return tuple(size_of(bound) for bound in shape)

    @property
    def has_any_shape(self) -> bool:
        """True if there may be any number of dimensions, of any size."""
        return self.shape == ANY_SHAPE

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Allowed dtypes."""
        if isinstance(self.dtype, torch.dtype):
            return (self.dtype,)
        return self.dtype or _DTYPES.get(self.role, INTEGERS)

    @property
    def follows_batch(self) -> bool:
        """True if a batch determines the values."""
        return self.role in _SHAPES and not self.written

    @property
    def is_read(self) -> bool:
        """True for an argument whose elements are read; a written one says their limits."""
        return not self.written or self.least is not None or self.below is not None

    @property
    def is_free(self) -> bool:
        """True for an argument that is read and follows from no batch."""
        return not self.follows_batch and self.is_read and not self.distinct

    @property
    def smallest(self) -> Bound | None:
        """Least value that the declaration or the role allows."""
        if self.least is None and self.role in _SHAPES and self.role != "slots":
            return None if self.role in ("block table", "slot pool") else 0
        return self.least

    @property
    def limit(self) -> Bound | None:
        """Limit that the declaration or the role sets."""
        return "P" if self.role == "pool rows" and self.below is None else self.below


@dataclass(frozen=True)
class Int:
    """An integer among the arguments."""

    amount: Amount = "number"
    least: Bound = 0
    below: Bound | None = None
    axis: str = ""
    """Axis of which it is the size."""

    def __str__(self) -> str:
        limit = "" if self.below is None else f" and below {self.below}"
        return f"<{self.axis or self.amount}, at least {self.least}{limit}>"

    @property
    def follows_batch(self) -> bool:
        """True if a batch determines the value."""
        return self.amount not in ("axis", "number")


class _NoNumbers:
    """A declaration of an argument without numbers."""

    follows_batch: ClassVar[bool] = False
    least: ClassVar[None] = None
    below: ClassVar[None] = None


@dataclass(frozen=True)
class Flag(_NoNumbers):
    """A bool among the arguments."""


@dataclass(frozen=True)
class Object(_NoNumbers):
    """An argument of another class, such as a list or the metadata of a batch.

    Conditions judge what it holds. No case can be derived from it.
    """

    kinds: tuple[type, ...] = ()
    """Its classes; those of the annotation by default, any for a protocol."""

    def __str__(self) -> str:
        return f"<{' or '.join(kind.__name__ for kind in self.kinds) or 'object'}>"


@dataclass(frozen=True)
class Metadata(Object):
    """The metadata of a batch: its fields agree in shapes, dtypes and devices, and in queries."""

    follows_batch: ClassVar[bool] = True
    sequences: bool = False
    """True if its lengths are read: those of sequences, queries and computed tokens agree."""
    rows: bool = False
    """True if optional fields are moved: they have an entry for each row or token."""
    logits: bool = False
    """True if its logits indices are read."""


Declaration = Array | Int | Flag | Object

Offsets = Annotated[torch.Tensor, Array("query offsets")]
"""(R+1,) first query token of each row, then their total."""
QueryLens = Annotated[torch.Tensor, Array("query lengths")]
"""(R,) query tokens of each row."""
ComputedLens = Annotated[torch.Tensor, Array("computed lengths")]
"""(R,) tokens of each row already in the cache."""
SeqLens = Annotated[torch.Tensor, Array("sequence lengths")]
"""(R,) computed and query tokens of each row."""
BlockTable = Annotated[torch.Tensor, Array("block table")]
"""(R, W) block ids of each row; entries behind its sequence are stale."""
Slots = Annotated[torch.Tensor, Array("slots")]
"""(T,) int64 cache slot of each query token."""
Positions = Annotated[torch.Tensor, Array("positions")]
"""(T,) position in its sequence of each query token."""
RequestIndices = Annotated[torch.Tensor, Array("request indices")]
"""(T,) row of each query token."""
NumReqs = Annotated[int, Int("requests")]
NumTokens = Annotated[int, Int("tokens")]
"""T."""
BlockSize = Annotated[int, Int("block size", least=1)]
"""Tokens per block."""
MaxQueryLen = Annotated[int, Int("longest query")]
MaxSeqLen = Annotated[int, Int("longest sequence")]
PoolRows = Annotated[torch.Tensor, Array("pool rows")]
"""(R,) row of each request in a pool, padded rows have that of the first one."""
SlotPool = Annotated[torch.Tensor, Array("slot pool")]
"""(P, C) cache slot of each position of a request, in its row of a pool that has more rows."""
TokenStarts = Annotated[torch.Tensor, Array("token starts")]
"""(R,) index of each row's first query token."""
