"""The report of a candidate's process on the calls of one case, as data."""

from __future__ import annotations

import builtins

import msgspec

from attnproof.harness.backports import BaseExceptionGroup
from attnproof.harness.model.text import text_of
from attnproof.harness.oracles.attempt import Change
from attnproof.harness.oracles.recompilation import Version
from attnproof.harness.running.exchange.values import Block, Plain, TensorData
from attnproof.reference.interface import MetadataError

_MOST_CAUSES = 5


class ErrorData(msgspec.Struct, frozen=True, array_like=True):
    """An exception that a candidate raised."""

    classes: list[str]
    """Its class and the classes above, as "module.name"."""
    text: str
    shown: str
    """Its text with its class."""
    field: str | None
    """Field that a MetadataError names."""
    cause: ErrorData | None


class AttemptData(msgspec.Struct, frozen=True, array_like=True):
    """One call of a candidate."""

    arena: int
    """Number of blocks that are the arena's buffers; they come first."""
    blocks: list[Block]
    tensors: list[TensorData]
    returned: list[tuple[Plain, Plain]]
    """Keys and values of the outputs."""
    error: ErrorData | None
    malformed: str
    log: str
    stray_writes: int
    unwaited_copies: bool
    changes: tuple[Change, ...]
    observed: Plain
    modified: str
    shared: str
    left_out: tuple[str, ...]
    restated: str


class LateData(msgspec.Struct, frozen=True, array_like=True):
    """A call with late copies."""

    copies: int
    may_wait: bool
    source_changed: bool
    attempt: AttemptData


class Observed(msgspec.Struct, frozen=True, tag=True):
    """All calls on one case."""

    case_id: str
    used: int
    """Bytes of the shared memory that hold data."""
    first: AttemptData
    again: AttemptData | None
    poisoned: AttemptData | None
    unwaited: AttemptData | None
    late: LateData | None
    printed: str
    """Text that the calls wrote to standard output."""
    has_children: bool
    """True if the process has children after the calls."""
    forked: bool = False
    """True if a forked copy of the process returned from a call."""
    overwritten: tuple[Plain, str, str, str] | None = None
    """Result of the call before that this call has changed, as the fields of `Overwritten`."""
    versions: list[Version] = []
    """Versions of kernels that engine steps launched."""


def error_data(error: BaseException, depth: int = 0) -> ErrorData:
    """Return the exception as data, with up to `_MOST_CAUSES` causes."""
    try:
        return _readable_error(error, depth)
    except Exception:  # its class forbids the look
        text = "an exception that cannot be read"
        return ErrorData(["builtins.Exception"], text, text, None, None)


def _readable_error(error: BaseException, depth: int) -> ErrorData:
    kind = type(error)
    cause = error.__cause__ or error.__context__
    return ErrorData(
        [f"{each.__module__}.{each.__name__}" for each in kind.__mro__],
        text_of(error, str),
        text_of(error),
        text_of(error.field, str) if isinstance(error, MetadataError) else None,
        error_data(cause, depth + 1) if cause is not None and depth < _MOST_CAUSES else None,
    )


def exception(data: ErrorData) -> BaseException:
    """Return an exception that looks like the candidate's, of the nearest class known here."""
    base = next(filter(None, map(_known_class, data.classes)))
    members = {"__str__": lambda _: data.text, "__repr__": lambda _: data.shown}
    kind: type[BaseException] = type(data.classes[0].rpartition(".")[2], (base,), members)
    error = kind.__new__(kind)
    if isinstance(error, MetadataError):
        error.field = data.field or ""
    error.__cause__ = None if data.cause is None else exception(data.cause)
    return error


def _known_class(name: str) -> type[BaseException] | None:
    if name == f"{MetadataError.__module__}.{MetadataError.__name__}":
        return MetadataError
    builtin = getattr(builtins, name.removeprefix("builtins."), None)
    if isinstance(builtin, type) and issubclass(builtin, BaseException):
        # A group cannot be made without its parts.
        return None if issubclass(builtin, BaseExceptionGroup) else builtin
    return None
