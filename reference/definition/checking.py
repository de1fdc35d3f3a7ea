"""The check of a call's arguments against the definition (SPEC.md rule 0.6).

It reads shapes, dtypes, devices, numbers and CPU tensors, never a device tensor.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ..checks.common import (
    check_common_metadata,
    check_cpu,
    check_device,
    check_logits,
    check_offsets,
    check_queries,
    check_rows,
    check_sequences,
)
from ..checks.slots import overlap
from ..checks.vectors import refuse
from ..interface.errors import MetadataError
from .definition import Argument, Definition, DefinitionError, Result, built_in_definition
from .roles import OF_SHAPES, Array, Bound, Flag, Int, Metadata, Object, Size, size_of

_KINDS: dict[type, tuple[type, ...]] = {Int: (int,), Flag: (bool,), Array: (torch.Tensor,)}
_PACKAGE = f"{__name__.split('.')[0]}."


def check_arguments(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise TypeError or MetadataError unless the arguments of an operation are as declared."""
    definition = built_in_definition(name)
    values = definition.signature.bind(*args, **kwargs)
    values.apply_defaults()
    check(definition, values.arguments)


def check(definition: Definition, arguments: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes of the axes; raise TypeError or MetadataError for other arguments."""
    passed = [
        (arg, _of_column(arg, arguments[arg.name]))
        for arg in definition.arguments
        if not (arg.optional and arguments[arg.name] is None)
    ]
    name = definition.name
    for argument, value in passed:
        _check_type(name, argument, value)
    for argument, value in passed:  # numbers first: sizes follow from them
        if isinstance(argument.declared, Int):
            _check_values(name, argument, value, {})
    sizes = _check_shapes(name, passed)
    for argument in definition.arguments:
        if isinstance(argument.declared, Int) and arguments[argument.name] is None:
            _stand_for_least(argument, argument.declared, sizes)
    tensors = {arg.name: value for arg, value in passed if isinstance(arg.declared, Array)}
    _check_places(name, passed, tensors)
    roles: dict[str, torch.Tensor] = {
        arg.declared.role: value
        for arg, value in passed
        if isinstance(arg.declared, Array) and not arg.declared.written
    }
    _measure_tokens(roles, sizes)
    for argument, value in sorted(passed, key=_is_no_offsets):  # the tokens follow from them
        _check_values(name, argument, value, sizes)
    _check_batch(name, passed, sizes)
    for condition in definition.requires:
        _check_condition(name, condition, {"sizes": sizes, "operation": name, **arguments})
    return sizes


def check_results(definition: Definition, returned: Any, sizes: dict[str, int]) -> None:
    """Raise DefinitionError unless what the reference returns is as declared."""
    results, where = definition.results, f"{definition.place}: {definition.name}"
    values = returned if len(results) > 1 else (returned,)
    if len(results) > 1 and not (isinstance(values, tuple) and len(values) == len(results)):
        shown = f"{len(values)} values" if isinstance(values, tuple) else type(values).__name__
        raise DefinitionError(f"{where} returns {shown}, declared are {len(results)} results")
    if not results and returned is not None:
        raise DefinitionError(f"{where} returns {type(returned).__name__}, declared is None")
    for result, value in zip(results, values, strict=False):
        if not (result.optional and value is None):
            got, expected = _difference(result, value, sizes)
            if got:
                raise DefinitionError(f"{where}: {result.name} is {got}, declared is {expected}")


def _difference(result: Result, value: Any, sizes: dict[str, int]) -> tuple[str, str]:
    """Return how a result differs from its declaration and what that says, "" for neither."""
    kind, declared = result.kind, result.declared
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        return type(value).__name__, kind.__name__
    if not isinstance(value, torch.Tensor):
        return "", ""
    # The reference of a result with a tolerance computes in float64.
    if value.dtype not in (*declared.dtypes, *([torch.float64] if declared.tolerance else [])):
        return _dtypes(value.dtype), _dtypes(*declared.dtypes)
    if declared.has_any_shape:
        return "", ""
    known = [size.axis in sizes or not size.axis for size in declared.sizes]
    expected = [
        size.value(sizes) if is_known else None
        for size, is_known in zip(declared.sizes, known, strict=True)
    ]
    if value.ndim != len(expected) or any(
        size not in (None, length) for size, length in zip(expected, value.shape, strict=True)
    ):
        shown = ", ".join("?" if size is None else str(size) for size in expected)
        return f"of shape {tuple(value.shape)}", f"({shown}{',' * (len(expected) == 1)})"
    return "", ""


def _dtypes(*dtypes: torch.dtype) -> str:
    return " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def _check_type(name: str, argument: Argument, value: Any) -> None:
    declared = argument.declared
    if isinstance(declared, Metadata):
        _check_metadata(name, declared, value)
        return
    kinds = declared.kinds if isinstance(declared, Object) else _KINDS[type(declared)]
    is_bool = isinstance(value, bool) and bool not in kinds
    is_right = isinstance(value, kinds) and not is_bool
    if isinstance(declared, Int):
        is_right = type(value) is int
    if kinds and not is_right:
        shown = " or ".join([*map(_class_name, kinds), *["None"] * argument.optional])
        raise TypeError(f"{name}: {argument.name} is {type(value).__name__}, expected {shown}")
    if not isinstance(declared, Array):
        return
    if value.ndim != len(declared.sizes) and not declared.has_any_shape:
        dimensions = f"{len(declared.sizes)}-D"
        raise MetadataError(name, argument.name, f"of shape {tuple(value.shape)}", dimensions)
    if value.dtype not in declared.dtypes:
        allowed = _dtypes(*declared.dtypes)
        raise MetadataError(name, argument.name, f"of dtype {value.dtype}", allowed)


def _class_name(kind: type) -> str:
    """Return the name of a class, that of another package with its module."""
    is_known = kind.__module__ == "builtins" or kind.__module__.startswith(_PACKAGE)
    return kind.__name__ if is_known else f"{kind.__module__}.{kind.__name__}"


def _of_column(argument: Argument, value: Any) -> Any:
    """Return a column (N, 1) as (N,) where it may be one, any other value itself."""
    declared = argument.declared
    if (
        not isinstance(declared, Array)
        or not declared.column
        or not isinstance(value, torch.Tensor)
    ):
        return value
    return value[:, 0] if value.ndim == 2 and value.shape[1] == 1 else value


def _check_metadata(name: str, declared: Metadata, metadata: Any) -> None:
    """Require a batch whose fields agree, those that the operation reads."""
    check_common_metadata(name, metadata)
    check_queries(name, metadata)
    if declared.sequences:
        check_sequences(name, metadata)
    if declared.logits:
        check_logits(name, metadata)
    if declared.rows:
        check_rows(name, metadata)


def _check_shapes(name: str, passed: list[tuple[Argument, Any]]) -> dict[str, int]:
    """Require sizes that agree; return the size of each axis."""
    sizes: dict[str, int] = {}
    for argument, value in passed:
        if isinstance(argument.declared, Int):
            sizes |= _size_said(argument.declared, value) | {argument.name: value}
        if isinstance(argument.declared, Metadata):
            sizes["R"] = value.num_reqs
    for argument, value in passed:
        declared = argument.declared
        if not isinstance(declared, Array) or (declared.or_empty and not value.numel()):
            continue
        both = [*zip(declared.sizes, value.shape, strict=not declared.has_any_shape)]
        for size, length in both[declared.longer :]:
            _check_size(name, argument.name, size, length, sizes)
    return sizes


def _stand_for_least(argument: Argument, declared: Int, sizes: dict[str, int]) -> None:
    """Add the size of an integer that is left out, which stands for its least value."""
    least = _limit(declared.least, sizes)
    if least is not None:
        sizes |= {argument.name: least}


def _size_said(declared: Int, value: int) -> dict[str, int]:
    axis = {"requests": "R", "tokens": "T"}.get(declared.amount, declared.axis)
    return {axis: value} if axis else {}


def _check_size(name: str, field: str, size: Size, length: int, sizes: dict[str, int]) -> None:
    if size.axis and size.axis not in sizes:
        least = size.more
        if length < least or (length - least) % size.times:
            raise MetadataError(name, field, f"of length {length}", f"at least {least}")
        sizes[size.axis] = (length - least) // size.times
    if length != size.value(sizes):
        raise MetadataError(name, field, f"of length {length}", f"length {size.value(sizes)}")


def _check_places(
    name: str, passed: list[tuple[Argument, Any]], tensors: dict[str, torch.Tensor]
) -> None:
    """Require dtypes, strides, one device, and memory of its own for each written array."""
    devices = [v.query_start_loc.device for arg, v in passed if isinstance(arg.declared, Metadata)]
    device = devices[0] if devices else None
    for argument, value in passed:
        if not isinstance(argument.declared, Array):
            continue
        alike = tensors.get(argument.declared.dtype_of)
        if alike is not None and value.dtype != alike.dtype:
            expected = f"{alike.dtype}, as {argument.declared.dtype_of}"
            raise MetadataError(name, argument.name, f"of dtype {value.dtype}", expected)
        if argument.declared.on_cpu:
            check_cpu(name, argument.name, value)
        else:
            device = device or value.device
            check_device(name, argument.name, value, device)
        if argument.declared.dense and value.shape[-1] > 1 and value.stride(-1) != 1:
            strides = f"of strides {value.stride()}"
            raise MetadataError(name, argument.name, strides, "a dense last dimension")
        for other, tensor in tensors.items() if argument.declared.written else ():
            if other == argument.name or not overlap(tensor, value):
                continue
            if other != argument.declared.may_be or not _is_same_memory(tensor, value):
                raise MetadataError(
                    name, argument.name, f"in the memory of {other}", "memory apart"
                )


def _is_no_offsets(pair: tuple[Argument, Any]) -> bool:
    declared = pair[0].declared
    return not (isinstance(declared, Array) and declared.role == "query offsets")


def _is_same_memory(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """True if the first elements of one tensor are those of the other."""
    same = tensor.data_ptr() == other.data_ptr() and tensor.stride() == other.stride()
    return same and tensor.dtype is other.dtype


def _measure_tokens(roles: dict[str, torch.Tensor], sizes: dict[str, int]) -> None:
    """Add the number of query tokens if offsets or lengths on the CPU say it."""
    offsets, lengths = roles.get("query offsets"), roles.get("query lengths")
    if offsets is not None and offsets.is_cpu and offsets.numel():
        last = min(sizes.get("R", len(offsets)), len(offsets) - 1)
        sizes.setdefault("T", int(offsets[last]))
    elif lengths is not None and lengths.is_cpu:
        sizes.setdefault("T", int(lengths.sum()))


def _check_values(name: str, argument: Argument, value: Any, sizes: dict[str, int]) -> None:
    declared = argument.declared
    if isinstance(declared, Int):
        least, below = _limit(declared.least, sizes), _limit(declared.below, sizes)
        # An axis that only a device tensor says is at least 0.
        least = size_of(declared.least).more if least is None else least
        if value < least:
            raise MetadataError(name, argument.name, value, f"at least {least}")
        if below is not None and value >= below:
            raise MetadataError(name, argument.name, value, f"below {below}")
    if not isinstance(declared, Array):
        return
    if declared.longer:
        needed = _first_size(declared, value, sizes)
        if value.shape[0] < needed:
            got = f"of length {value.shape[0]}"
            raise MetadataError(name, argument.name, got, f"at least {needed}")
        value = value[:needed]
    if not value.is_cpu:
        return
    if declared.role == "query offsets" and not declared.written:
        check_offsets(name, argument.name, value)
    if not declared.is_read or declared.role in ("flags", "data", "slot pool"):
        return
    flat = value.flatten().long()  # limits may be beyond the dtype
    least, below = _limit(declared.smallest, sizes), _limit(declared.limit, sizes)
    if least is not None:
        refuse(name, argument.name, flat, flat < least, f"at least {least}")
    if below is not None:
        refuse(name, argument.name, flat, flat >= below, f"below {below}")
    if declared.distinct:
        ordered = flat[flat >= 0].sort().values
        refuse(name, argument.name, ordered[1:], ordered[1:] == ordered[:-1], "each value once")


def _first_size(declared: Array, value: torch.Tensor, sizes: dict[str, int]) -> int:
    """Return the first size of an array, that of the value if only a device knows it."""
    size = declared.sizes[0]
    return size.value(sizes) if not size.axis or size.axis in sizes else value.shape[0]


def _limit(bound: Bound | None, sizes: dict[str, int]) -> int | None:
    if bound is None:
        return None
    size = size_of(bound)
    return size.value(sizes) if not size.axis or size.axis in sizes else None


def _check_batch(name: str, passed: list[tuple[Argument, Any]], sizes: dict[str, int]) -> None:
    """Require that lengths, offsets and the block table on the CPU are of one batch.

    Of a block table on a device only the width is looked at.
    """
    by_role: dict[str, tuple[str, torch.Tensor]] = {
        arg.declared.role: (arg.name, value[: _first_size(arg.declared, value, sizes)])
        for arg, value in passed
        if isinstance(arg.declared, Array)
        and arg.declared.follows_batch
        and (value.is_cpu or arg.declared.role == "block table")
        and not (arg.declared.or_empty and not value.numel())
    }
    amounts = {
        arg.declared.amount: (arg.name, v) for arg, v in passed if isinstance(arg.declared, Int)
    }
    queries = _query_lens(by_role)
    if "tokens" in amounts and queries is not None and int(queries.sum()) != amounts["tokens"][1]:
        field, value = amounts["tokens"]
        raise MetadataError(name, field, value, f"{int(queries.sum())}, the query tokens")
    lengths = _seq_lens(by_role, queries)
    if "sequence lengths" in by_role and queries is not None:
        field, value = by_role["sequence lengths"]
        refuse(name, field, value, value < queries, "at least the query length")
    if "block table" in by_role and "block size" in amounts and lengths is not None:
        field, table = by_role["block table"]
        pages = -(-lengths.long() // amounts["block size"][1])
        needed = int(pages.max()) if len(pages) else 0
        if needed > table.shape[1]:
            raise MetadataError(name, field, f"{table.shape[1]} columns wide", f"at least {needed}")
        if not table.is_cpu:
            return
        live = torch.arange(table.shape[1]) < pages[:, None]
        lowest = torch.where(live, table, 0).amin(1) if table.numel() else table.flatten()
        refuse(name, field, lowest, lowest < 0, "block ids of at least 0")


def _query_lens(by_role: dict[str, tuple[str, torch.Tensor]]) -> torch.Tensor | None:
    if "query offsets" in by_role:
        return by_role["query offsets"][1].diff()
    return by_role["query lengths"][1] if "query lengths" in by_role else None


def _seq_lens(
    by_role: dict[str, tuple[str, torch.Tensor]], queries: torch.Tensor | None
) -> torch.Tensor | None:
    if "sequence lengths" in by_role:
        return by_role["sequence lengths"][1]
    if "computed lengths" in by_role and queries is not None:
        return by_role["computed lengths"][1] + queries
    return None


def _check_condition(name: str, condition: Any, known: Mapping[str, Any]) -> None:
    values = {parameter: known[parameter] for parameter in inspect.signature(condition).parameters}
    tensors = [value for value in values.values() if isinstance(value, torch.Tensor)]
    if not (getattr(condition, OF_SHAPES, False) or all(tensor.is_cpu for tensor in tensors)):
        return
    problems: Iterator[tuple[str, Any, str]] | None = condition(**values)
    for field, wrong, expected in problems or ():
        value = values[field]
        if isinstance(wrong, torch.Tensor) and wrong.ndim:
            refuse(name, field, value.flatten(), wrong.flatten(), expected)
        elif wrong:
            got = f"of length {len(value)}" if isinstance(value, torch.Tensor) else value
            raise MetadataError(name, field, got, expected)
