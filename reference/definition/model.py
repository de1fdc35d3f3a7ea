"""Definitions of operations: their arguments, results and conditions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from .roles import Array, Bound, Declaration, Int


class DefinitionError(Exception):
    """A definition that says too little or contradicts itself; its message begins with a place."""


@dataclass(frozen=True)
class Argument:
    """A parameter of an operation."""

    name: str
    declared: Declaration
    optional: bool = False
    """True if it may be None."""
    keyword_only: bool = False
    default: Any = inspect.Parameter.empty

    @property
    def is_written(self) -> bool:
        """True for an array that the operation fills."""
        return isinstance(self.declared, Array) and self.declared.written


@dataclass(frozen=True)
class Result:
    """A returned array."""

    name: str
    declared: Array
    kind: type = torch.Tensor
    """Its class: `torch.Tensor`, or that of a number or object, which `declared` is not about."""
    optional: bool = False
    """True if it may be None."""


class Values(Protocol):
    """Values of the arguments of one call, from which others follow."""

    @property
    def batch(self) -> Any:
        """The batch as arrays: `query_start_loc`, `seq_lens`, `num_computed_tokens`,
        `block_table` (`np.ndarray`), `num_reqs`, `max_query_len`, `max_seq_len`."""

    @property
    def block_size(self) -> int:
        """Tokens per block of the batch."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """Size of each axis."""

    @property
    def params(self) -> Mapping[str, Any]:
        """Parameters of the case, `choices` among them."""

    @property
    def stale(self) -> int:
        """Content of a place that nothing may read."""

    def __getitem__(self, name: str) -> Any:
        """Return the value of another argument, an array as `np.ndarray`."""


@dataclass(frozen=True)
class Definition:
    """Arguments and results of a function, and of the methods of a class."""

    name: str
    summary: str
    """First sentence of the docstring."""
    place: str
    """File and line of the function."""
    function: Callable[..., Any]
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    requires: tuple[Callable[..., Any], ...] = ()
    """Further conditions on the arguments; see `operation`."""
    independent: bool = False
    """True if the results of a row do not depend on the other rows."""
    methods: tuple[Definition, ...] = ()
    """Steps of a class; its own arguments are those of `__init__`."""
    state: tuple[str, ...] = ()
    """Attributes of a class that are compared after each step."""
    values: Mapping[str, Callable[[Values], Any]] = field(default_factory=dict)
    """Function that computes an argument or axis from the other arguments, by name."""
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Further parameters of the cases, which `values` read: their values, the usual one first."""

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        """Signature of the function."""
        return inspect.signature(self.function)

    @property
    def has_batch(self) -> bool:
        """True if a batch determines some argument, of a class one of its methods."""
        return any(arg.declared.follows_batch for arg in self.every_argument)

    @property
    def has_own_batch(self) -> bool:
        """True if a batch determines some argument, of a class one of its instantiation."""
        return any(arg.declared.follows_batch for arg in self.arguments)

    @property
    def has_conditions(self) -> bool:
        """True if arguments that are each as declared may be refused together."""
        declared = [arg.declared for arg in self.arguments]
        bounds = [
            (declaration, bound)
            for declaration in declared
            for bound in (declaration.least, declaration.below)
        ]
        return (
            bool(self.requires)
            or any(
                isinstance(declaration, Array) and declaration.distinct for declaration in declared
            )
            or any(isinstance(bound, str) for _, bound in bounds)
            or any(
                bound is not None and _narrows(declaration, bound) for declaration, bound in bounds
            )
        )

    @property
    def has_results(self) -> bool:
        """True if something is returned or written, or is state."""
        written = any(arg.is_written for arg in self.every_argument)
        returned = self.results or any(method.results for method in self.methods)
        return bool(returned or self.state or written)

    @property
    def every_argument(self) -> Iterator[Argument]:
        """The arguments, and those of the methods."""
        yield from self.arguments
        for method in self.methods:
            yield from method.arguments


def _narrows(declared: Declaration, bound: Bound) -> bool:
    """True for a limit that some batch does not keep."""
    return declared.follows_batch and bound not in (0, 1 if _is_block_size(declared) else 0)


def _is_block_size(declared: Declaration) -> bool:
    return isinstance(declared, Int) and declared.amount == "block size"
