"""Arguments of a case of a defined operation: values by role, laid out in guarded memory."""

from __future__ import annotations

import traceback
import zlib
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from attnproof.harness.cases.batches.tensors import (
    BatchArrays,
    batch_arrays,
    metadata_of,
    row_strides,
)
from attnproof.harness.cases.memory.arena import (
    STALE_PATTERNS,
    UNWRITTEN_PATTERNS,
    Arena,
    Piece,
    Placement,
)
from attnproof.harness.model.case import Batch
from attnproof.harness.operations.derived.of_batch import amounts_of, of_role, sizes_of
from attnproof.harness.operations.derived.params import (
    ORDER,
    SPARE,
    Form,
    Layout,
    free_axes,
    has_pool,
    in_place,
    key_of,
    limits,
)
from attnproof.harness.operations.derived.pool import Pool, token_pool
from attnproof.reference.definition.definition import Argument, DefinitionError
from attnproof.reference.definition.roles import Array, Flag, Int, Metadata

_NUMPY = {
    torch.uint8: np.uint8,
    torch.int8: np.int8,
    torch.int16: np.int16,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.bool: np.bool_,
}
_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers of the size of a float, in whose place the arena lays them out."""


class MetadataOf(NamedTuple):
    """Metadata of another batch than that of the case, some of its tensors with other values."""

    batch: Batch
    tensors: dict[str, np.ndarray]


class Values:
    """Values of the arguments of one call, by name."""

    def __init__(
        self,
        form: Form,
        batch: Batch | None,
        params: dict[str, Any],
        layout: Layout,
        pattern: int,
    ) -> None:
        definition = self.definition = form.definition
        self._supplied, self._batch = form.values, None
        self._known: dict[str, Any] = {}
        self._arguments = {a.name: a for a in definition.arguments}
        self._metadata = [a.name for a in definition.arguments if isinstance(a.declared, Metadata)]
        if batch is not None:
            self._batch = batch_arrays(batch, pattern)
        self.params, self._layout, self.pattern = params, layout, pattern
        self.stale = STALE_PATTERNS[pattern]
        self.sizes = sizes_of(self._batch)
        if batch is not None and has_pool(definition):
            rows, columns = self.pool.table.shape
            self.sizes |= {"P": rows, "C": columns}
        free = free_axes(definition)
        drawn = [a.declared for a in definition.arguments if a.name not in self._supplied]
        arrays = [declared for declared in drawn if isinstance(declared, Array)]
        self._open = {*free} - {s.axis for array in arrays for s in array.sizes} - {*self._supplied}
        """Axes of arrays that `values` compute, and of no other."""
        for axis in free:
            if axis not in self._supplied:
                self.sizes[axis] = params[f"size_{axis}"]
        for axis in free:
            if axis in self._supplied:
                self.sizes[axis] = int(self._following(axis))
        # Limits may be the values of other numbers, which have constant ones.
        for argument in sorted(definition.arguments, key=_depends_on_others):
            if isinstance(argument.declared, Int):
                names = filter(None, (argument.name, argument.declared.axis))
                least = limits(argument.declared, self.sizes)[0]
                size = self[argument.name] if self.has(argument) else least
                self.sizes |= dict.fromkeys(names, size)

    @property
    def batch(self) -> BatchArrays:
        """Arrays of the case's batch."""
        assert self._batch is not None
        return self._batch

    @property
    def block_size(self) -> int:
        """Tokens per block of the case's batch."""
        return self.batch.batch.block_size

    @cached_property
    def pool(self) -> Pool:
        """The batch's slots in a pool."""
        return token_pool(self.batch.batch, self.pattern)

    def __getitem__(self, name: str) -> Any:
        """Return the value of an argument, arrays as `np.ndarray`; None for an absent one."""
        if name not in self._known:
            self._known[name] = self._value(self._arguments[name])
        return self._known[name]

    def _value(self, argument: Argument) -> Any:
        declared = argument.declared
        if not self.has(argument):
            return None
        if argument.name in self._supplied:
            value = self._following(argument.name)
            if value is None or not isinstance(declared, Array):
                return value
            return self._with_tail(self._converted(value, declared), declared)
        if isinstance(declared, Array):
            return self._array(argument, declared)
        if isinstance(declared, Flag):
            return self.params[key_of(argument)]
        assert isinstance(declared, Int)
        return self._number(argument, declared)

    def _following(self, name: str) -> Any:
        """Return what `values` compute of an argument or axis (DefinitionError)."""
        try:
            value = self._supplied[name](self)
        except DefinitionError:  # of another one, which this one reads
            raise
        except Exception as error:
            file = self.definition.place.rpartition(":")[0]
            frames = traceback.extract_tb(error.__traceback__)
            frame = [frame for frame in frames if frame.filename == file][-1:] or frames[-1:]
            raise DefinitionError(
                f'{frame[0].filename}:{frame[0].lineno}: values["{name}"] of '
                f"{self.definition.name} raises {type(error).__name__}: {error}"
            ) from error
        return value.item() if isinstance(value, np.generic) else value

    def _number(self, argument: Argument, declared: Int) -> int:
        """Return the value of an integer, inside its limits."""
        if declared.follows_batch:
            return amounts_of(self.batch)[declared.amount]
        low, high = limits(declared, self.sizes)
        value: int = self.params[key_of(argument)]
        if isinstance(declared.least, str):
            value += low
        return max(low, min(value, high))

    def _converted(self, value: Any, declared: Array) -> np.ndarray:
        """Return a supplied array in a dtype of the declaration, its own if that is allowed."""
        array = np.asarray(value)
        if array.dtype in [_NUMPY.get(dtype) for dtype in declared.dtypes]:
            return array
        return self._in_memory(array, self.dtype_of(declared))

    def arrays(self) -> Iterator[tuple[Argument, np.ndarray]]:
        """Yield the values of each array that the call has."""
        for argument in self.definition.arguments:
            if not isinstance(argument.declared, Array) or self._is_shared(argument.declared):
                continue
            if self[argument.name] is not None:
                self._check_shape(argument, self[argument.name])
                yield argument, self[argument.name]

    def _check_shape(self, argument: Argument, array: np.ndarray) -> None:
        """Raise DefinitionError if `values` compute an array of another shape than declared."""
        declared = argument.declared
        assert isinstance(declared, Array)
        if argument.name not in self.definition.values or len(declared.sizes) != array.ndim:
            return
        shape = [*array.shape]
        shape[:1] = [size - self.params[SPARE] for size in shape[:1] if declared.longer] or shape[
            :1
        ]
        # The first array that has an axis of such arrays only decides its size.
        for size, length in zip(declared.sizes, shape, strict=True):
            if size.axis in self._open and size.times:
                self._open.remove(size.axis)
                self.sizes[size.axis] = (length - size.more) // size.times
        expected = [size.value(self.sizes) for size in declared.sizes]
        if shape != expected and not (declared.or_empty and not array.size):
            raise DefinitionError(
                f'{self.definition.place}: values["{argument.name}"] of {self.definition.name} is '
                f"of shape {shape}, {expected} is declared: {declared}"
            )

    def _is_shared(self, declared: Array) -> bool:
        """True for an array that is written in the memory of another argument."""
        return bool(declared.may_be) and bool(self.params[in_place(declared)])

    def written(self) -> frozenset[str]:
        """Return the arguments of the call that are written."""
        names = set[str]()
        for argument in self.definition.arguments:
            declared = argument.declared
            if isinstance(declared, Array) and declared.written and self[argument.name] is not None:
                names |= {argument.name}
                names |= {declared.may_be} if self._is_shared(declared) else set()
        return frozenset(names)

    def has(self, argument: Argument) -> bool:
        """True unless the case leaves out an optional argument."""
        return not argument.optional or bool(self.params[f"with_{argument.name}"])

    def _array(self, argument: Argument, declared: Array) -> np.ndarray:
        if declared.follows_batch:
            if declared.role in ("pool rows", "slot pool"):
                lengths, pool = self.batch.seq_lens.dtype, self.pool
                values = pool.table if declared.role == "slot pool" else pool.rows.astype(lengths)
            else:
                values = of_role(self.batch, declared.role, self.pattern)
            if declared.or_empty and not self.params[f"with_{argument.name}"]:
                values = values[:0]
            if declared.dtype:
                values = values.astype(_NUMPY[self.dtype_of(declared)])
            return self._with_tail(values, declared)
        shape = tuple(size.value(self.sizes) for size in declared.sizes)
        dtype = self.dtype_of(declared)
        if declared.is_read:
            chosen = self._in_memory(self._chosen(argument, declared, shape), dtype)
        else:
            words = _WORDS[dtype.itemsize] if dtype.is_floating_point else dtype
            chosen = _filled(shape, np.dtype(_NUMPY[words]), UNWRITTEN_PATTERNS[self.pattern])
        return self._with_tail(chosen, declared)

    def _with_tail(self, array: np.ndarray, declared: Array) -> np.ndarray:
        """Return an array that may be longer with stale entries behind it."""
        spare = self.params[SPARE] if declared.longer else 0
        if not spare:
            return array
        stale = (UNWRITTEN_PATTERNS if declared.written else STALE_PATTERNS)[self.pattern]
        return np.concatenate([array, _filled((spare, *array.shape[1:]), array.dtype, stale)])

    def _in_memory(self, values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
        """Return the values in a dtype, floats as words of their size."""
        if not dtype.is_floating_point:
            return values.astype(_NUMPY[dtype])
        return torch.from_numpy(values).to(dtype).view(_WORDS[dtype.itemsize]).numpy()

    def dtype_of(self, declared: Array) -> torch.dtype:
        """Return the dtype of an array that no batch determines."""
        if declared.dtype_of:
            other = self._arguments[declared.dtype_of].declared
            assert isinstance(other, Array)
            if other.follows_batch or declared.dtype_of in self._supplied:
                return torch.from_numpy(self[declared.dtype_of]).dtype
            return self.dtype_of(other)
        return declared.dtypes[-1 if self._layout.other_dtypes else 0]

    def bound(self, arena: Arena, prefix: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
        """Return positional and keyword arguments; `prefix` begins their names in the arena."""
        args: dict[str, Any] = {}
        kwargs: dict[str, Any] = {}
        for arg in self.definition.arguments:
            if isinstance(arg.declared, Array):
                name = arg.declared.may_be if self._is_shared(arg.declared) else arg.name
                value: Any = self.tensor(arg, arena.tensors.get(f"{prefix}{name}"))
            elif arg.name in self._metadata:
                value = metadata_of(self._metadata_arrays()[0], arena.tensors)
            else:
                value = self[arg.name]
            (kwargs if arg.keyword_only else args)[arg.name] = value
        return args, kwargs

    def _metadata_arrays(self) -> tuple[BatchArrays, dict[str, np.ndarray]]:
        """Return the batch that is the metadata, and the values of tensors with others."""
        name = self._metadata[0]
        if name not in self._supplied:
            return self.batch, {}
        supplied: MetadataOf = self[name]
        return batch_arrays(supplied.batch, self.pattern), supplied.tensors

    def metadata_pieces(self) -> list[Piece]:
        """Return the tensors of the batch's metadata, if it is an argument."""
        if not self._metadata:
            return []
        arrays, others = self._metadata_arrays()
        pieces = [piece for piece in arrays.pieces(self.stale) if piece.name not in others]
        step = 2 if arrays.batch.strided else 1
        for name, values in others.items():
            strides = row_strides(values.shape, step) if values.ndim == 2 else (step,)
            pieces.append(Piece(name, values, name.endswith("_cpu"), strides))
        return pieces

    def metadata_among(self, arguments: dict[str, Any]) -> Any:
        """Return the argument that is the batch's metadata, None without."""
        return arguments[self._metadata[0]] if self._metadata else None

    def tensor(self, argument: Argument, tensor: torch.Tensor | None) -> torch.Tensor | None:
        """Return a tensor of the arena as the argument: words of a float as floats."""
        declared = argument.declared
        assert isinstance(declared, Array)
        if tensor is None or declared.role != "data":
            return tensor
        return tensor.view(self.dtype_of(declared))

    def _chosen(self, argument: Argument, declared: Array, shape: tuple[int, ...]) -> np.ndarray:
        """Return the parameter's elements in turn, inside the limits; distinct ones at random."""
        if declared.distinct:
            low, high = limits(declared, self.sizes)
            count = int(np.prod(shape))
            room = min(high - low + 1, 2 * count + 1)
            chance = np.random.default_rng([self.params[ORDER], zlib.crc32(argument.name.encode())])
            drawn = low + chance.permutation(max(room, count))
            # Results of earlier steps.
            first = np.array(self.params.get(key_of(argument), []), np.int64)
            first = first[(first >= low) & (first <= high)]
            return np.append(first, drawn[~np.isin(drawn, first)])[:count].reshape(shape)
        elements = np.resize(np.array(self.params[key_of(argument)]), shape)
        if declared.role in ("flags", "data"):
            return elements
        low, high = limits(declared, self.sizes)
        return np.clip(elements, low, max(low, high))

    def piece(self, argument: Argument, name: str, values: np.ndarray) -> Piece:
        """Return the values as a tensor to lay out."""
        strides: list[int] = []
        strided = self._batch is not None and self._batch.batch.strided
        declared = argument.declared
        dense = isinstance(declared, Array) and declared.dense
        stride = 1 if dense else max(self._layout.step, 2 if strided else 1)
        for axis in range(values.ndim - 1, -1, -1):
            strides.insert(0, stride)
            stride = stride * max(1, values.shape[axis])
            if axis == values.ndim - 1 and values.ndim > 1:
                stride += self._layout.gap
        return Piece(name, values, argument.declared.on_cpu, tuple(strides))  # type: ignore[union-attr]


def _depends_on_others(argument: Argument) -> bool:
    declared = argument.declared
    limits_of = (declared.least, declared.below) if isinstance(declared, Int) else ()
    return any(isinstance(limit, str) for limit in limits_of)


def placement(layout: Layout) -> Placement:
    """Return where the arrays of a layout lie."""
    return Placement(layout.alone, layout.backwards, layout.offset)


def _filled(shape: tuple[int, ...], dtype: np.dtype, stale: int) -> np.ndarray:
    """Return an array of a stale word, of 1 in a dtype that is too narrow for it."""
    filled: np.ndarray = np.full(shape, stale if dtype.itemsize > 2 else 1, dtype)
    return filled
