"""Sizes of the axes and values of the inputs of a JSON definition."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Annotated, Any

import numpy as np
import torch
from hypothesis import strategies as st
from msgspec import Meta

from attnproof.harness.model.case import Batch, Count
from attnproof.harness.operations.derived.arguments import Values
from attnproof.harness.operations.derived.params import Parameter, one_of

SEED = Parameter(Count, (1, 0, 2), st.integers(0, 2**16))
SCALE = one_of(float, 1.0, 0.0, 4.0)
"""Standard deviation of arrays of floats."""
SCALAR = one_of(float, 0.125, 0.5, 0.01)
"""A float: a positive number, as scales and epsilons are."""
GLOBALS = {"torch": torch, "math": math}
"""Names that constraints may have beside the file's and the built-in ones."""
_SIZES = (3, 1, 2, 4, 31, 32, 33, 127, 128, 129, 257)
_LENGTHS = ((2, 1, 3), (1,), (0,), (0, 4), (5, 0), (17,), (33, 1), (129, 1))
_MOST_ELEMENTS = 2**19
"""Elements of an array with variable axes: references are loops, and each case runs them."""
_MOST_TOKENS = 260
"""Tokens between two offsets."""
_PERIOD = 65537
"""Random numbers after which those of an array repeat: a prime, so that no two rows are equal."""


@dataclass(frozen=True)
class Formula:
    """An expression over axes and inputs."""

    code: CodeType
    names: frozenset[str]

    def value(self, scope: dict[str, Any]) -> Any:
        """Return the value; raise whatever the expression raises."""
        return eval(self.code, GLOBALS | scope)


@dataclass(frozen=True)
class InputValues:
    """Constants, shapes of the inputs, and the axes that constraints determine."""

    consts: dict[str, int]
    shapes: Mapping[str, list[str]]
    formulas: dict[str, Formula]

    def size(self, axis: str, values: Values) -> int:
        """Return the size of an axis: a constant, what a constraint says, or a parameter."""
        if axis in self.consts:
            return self.consts[axis]
        if axis not in values.sizes:
            formula = self.formulas.get(axis)
            values.sizes[axis] = (
                values.params[f"size_{axis}"] if formula is None else self._solved(formula, values)
            )
        return values.sizes[axis]

    def _solved(self, formula: Formula, values: Values) -> int:
        scope: dict[str, Any] = {}
        for name in formula.names:
            value = values[name] if name in self.shapes else self.size(name, values)
            scope[name] = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        try:
            return max(0, int(formula.value(scope)))
        except (ValueError, IndexError, ArithmeticError, RuntimeError):
            return 0  # the condition on the same constraint drops the case

    def _shape(self, name: str, values: Values) -> tuple[int, ...]:
        return tuple(self.size(axis, values) for axis in self.shapes[name])

    def _chance(self, name: str, values: Values) -> np.random.Generator:
        return np.random.default_rng([values.params["values_seed"], zlib.crc32(name.encode())])

    def floats(self, name: str, values: Values) -> np.ndarray:
        """Return normal numbers."""
        shape, chance = self._shape(name, values), self._chance(name, values)
        drawn = chance.standard_normal(min(math.prod(shape), _PERIOD), dtype=np.float32)
        return np.resize(drawn * np.float32(values.params["values_scale"]), shape)

    def page_ids(self, name: str, values: Values) -> np.ndarray:
        """Return ids of pages in random order; pages are shared if there are too few."""
        shape, pages = self._shape(name, values), self.size("num_pages", values)
        order = self._chance(name, values).permutation(max(math.prod(shape), pages))
        return np.resize(order % max(1, pages), shape)

    def offsets(self, name: str, values: Values) -> np.ndarray:
        """Return offsets that rise from 0."""
        (size,) = self._shape(name, values)
        return np.concatenate([[0], np.cumsum(self._lengths(name, values))])[:size]

    def _lengths(self, name: str, values: Values) -> np.ndarray:
        """Return the lengths between the offsets; of keys no fewer than of queries."""
        (size,) = self._shape(name, values)
        lengths: np.ndarray = np.resize(values.params[f"lengths_{name}"], max(0, size - 1))
        for other, shape in self.shapes.items():
            is_of_queries = other.startswith("q") and other.endswith("_indptr")
            if is_of_keys(name) and is_of_queries and shape == self.shapes[name]:
                # Of a causal row with fewer keys than queries some queries see no key at all.
                lengths += self._lengths(other, values)
        return lengths

    def size_parameter(self, axis: str, shapes: Iterable[list[str]]) -> Parameter:
        """Return the sizes of an axis, by which arrays of these shapes stay small."""
        most = float(max(_SIZES))
        for shape in shapes:
            if axis in shape:
                fixed = math.prod(self.consts.get(dim, 1) for dim in shape)
                variable = sum(dim not in self.consts for dim in shape)
                most = min(most, max(4, (_MOST_ELEMENTS / fixed) ** (1 / variable)))
        values = tuple(size for size in _SIZES if size <= most)
        drawn = st.sampled_from(values) | st.integers(1, min(int(most), 20))
        return Parameter(Annotated[int, Meta(ge=1, le=int(most))], values, drawn)

    def length_parameter(self, name: str) -> Parameter:
        """Return the lengths between offsets, which are repeated."""
        pages = self.consts.get("page_size", 1) if is_of_keys(name) else 1
        most = max(2, _MOST_TOKENS // pages)
        rows = dict.fromkeys(tuple(min(count, most) for count in row) for row in _LENGTHS)
        length = Annotated[int, Meta(ge=0, le=most)]
        kind = Annotated[list[length], Meta(min_length=1, max_length=2**10)]
        drawn = st.lists(st.integers(0, min(most, 9)), min_size=1, max_size=8)
        return Parameter(kind, tuple(map(list, rows)), drawn)


def is_of_keys(name: str) -> bool:
    """True for the name of offsets of keys or of their pages."""
    return name.startswith("k")


def of_step(batch: Batch, parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    """Return the parameters of a step of an engine, cut to the usual sizes."""
    changed: dict[str, Any] = {}
    for key, parameter in parameters.items():
        most = np.max(np.concatenate([np.atleast_1d(value) for value in parameter.values]))
        if key.startswith("size_"):
            changed[key] = int(min(max(1, batch.num_requests), most))
        elif key.startswith("lengths_"):
            lengths = (
                batch.computed_lens if is_of_keys(key[len("lengths_") :]) else batch.query_lens
            )
            changed[key] = [min(length, int(most)) for length in lengths] or [0]
    return changed
