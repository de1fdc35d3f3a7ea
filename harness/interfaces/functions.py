"""Functions of engines under our names; arguments are converted before the clock starts."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from attnproof import reference
from attnproof.harness.interfaces import builders, naming, vllm_batch
from attnproof.harness.interfaces.conversion import Conversion
from attnproof.harness.model.call import Thunk
from attnproof.harness.operations.batch.reorder import REORDER
from attnproof.reference.shared import CommonAttentionMetadata

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Convert = Callable[..., Arguments]
SPLIT = "split_decodes_and_prefills"
SPLIT_OPTIONS = {"require_uniform": (2, False), "treat_short_extends_as_decodes": (3, True)}
"""Arguments of the split that 0.10 does not have, and 0.11: place and default."""
_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
"""Kinds of a function's parameters that take any number of arguments."""


class Adapted:
    """A function of an engine that takes our arguments and returns our results."""

    def __init__(
        self, function: Callable[..., Any], conversion: Conversion, convert: Convert | None = None
    ) -> None:
        """`convert` takes our arguments and returns the engine's; by default batches change."""
        self.function = function
        self.conversion = conversion
        self.convert = convert or self._converted
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def _converted(self, *args: Any, **kwargs: Any) -> Arguments:
        theirs = self.conversion.theirs
        return tuple(map(theirs, args)), {name: theirs(value) for name, value in kwargs.items()}

    def bind(self, *args: Any, **kwargs: Any) -> Thunk:
        """Convert the arguments now; return the engine's own function bound to them."""
        args, kwargs = self.convert(*args, **kwargs)
        return partial(self.function, *args, **kwargs)

    def unbind(self, result: Any, *args: Any, **_: Any) -> Any:
        """Convert a result of the engine's own function back."""
        batch = next((arg for arg in args if isinstance(arg, CommonAttentionMetadata)), None)
        return self.conversion.ours(result, batch)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Convert, call, convert back; what the engine assigned in an argument is kept."""
        thunk = self.bind(*args, **kwargs)
        try:
            result = thunk()
        finally:
            for value in (*getattr(thunk, "args", ()), *getattr(thunk, "keywords", {}).values()):
                self.conversion.write_back(value)
        return self.unbind(result, *args, **kwargs)


class First(Adapted):
    """A function of an engine that returns a batch, or a tuple that begins with one."""

    def unbind(self, result: Any, *args: Any, **kwargs: Any) -> Any:
        """Convert the batch back, and leave out the rest."""
        return super().unbind(result[0] if type(result) is tuple else result, *args, **kwargs)


class Reduced(Adapted):
    """A function of an engine that returns a smaller batch without computed tokens."""

    def unbind(self, result: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Convert the batch back; its computed tokens are those of the given batch."""
        reduced = super().unbind(result, batch, *args, **kwargs)
        mirrored = naming.has_mirrors(self.conversion.metadata_class)
        return reduced if mirrored else builders.with_computed(reduced, batch)


class InputBatch:
    """An engine's rows for versions that also read the progress of each request.

    A case without progress has decodes and prefills only (SPEC.md section 2). Here every
    request has some context and no prompt left, so that each request that is not a decode is
    an extension.
    """

    def __init__(self, rows: Any, num_reqs: int) -> None:
        self._rows = rows
        self.num_computed_tokens_cpu = np.ones(num_reqs, np.int32)
        self.num_prompt_tokens = np.zeros(num_reqs, np.int32)

    @property
    def req_ids(self) -> Any:
        """Request ids in row order."""
        return self._rows.req_ids

    def swap_states(self, i: int, j: int) -> None:
        """Exchange rows i and j."""
        self._rows.swap_states(i, j)


def with_progress(input_batch: Any, *args: Any, **kwargs: Any) -> Arguments:
    """Convert rows without progress to rows with it."""
    # Our stand-in has a flag of its own: it records what is read.
    known = hasattr(input_batch, "has_progress") or hasattr(input_batch, "num_computed_tokens_cpu")
    if not hasattr(input_batch, "req_ids") or getattr(input_batch, "has_progress", known):
        return (input_batch, *args), kwargs
    return (InputBatch(input_batch, len(input_batch.req_ids)), *args), kwargs


def parameters_of(function: Any) -> dict[str, Any]:
    """Return the kinds of a function's parameters by name, none without a signature."""
    try:
        return {p.name: p.kind for p in inspect.signature(function).parameters.values()}
    except (TypeError, ValueError):
        return {}


def takes(function: Any, name: str) -> bool:
    """True if a function has a parameter of that name, or takes any, or has no signature."""
    kinds = parameters_of(function)
    return not kinds or name in kinds or any(kind in _ANY_NUMBER for kind in kinds.values())


def offsets_on_cpu(query_start_loc_p: Any) -> Arguments:
    """Convert for a later engine, which takes offsets on the CPU and a device."""
    return (query_start_loc_p.cpu(),), {"device": query_start_loc_p.device}


class _Same(Conversion):
    """Conversion that changes nothing: a batch has its class, memory and later fields."""

    def theirs(self, value: Any) -> Any:
        """Return the argument."""
        return value

    def ours(self, value: Any, _batch: Any = None) -> Any:
        """Return the result."""
        return value


def _takes_by_place(function: Any, name: str) -> bool:
    """True if a function has a positional parameter of that name, or if it is unknown."""
    kinds = parameters_of(function)
    if not kinds or inspect.Parameter.VAR_POSITIONAL in kinds.values():
        return True
    return kinds.get(name) in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    )


class _LaterDefaults:
    """Conversion of the later arguments of the split for a function without places for them.

    Those that it takes by name only go by name; those that it does not know are left out if they
    have their default.
    """

    def __init__(self, function: Any, conversion: Conversion) -> None:
        self._theirs = conversion.theirs
        self._unknown = {
            name: option for name, option in SPLIT_OPTIONS.items() if not takes(function, name)
        }
        self._without_place = [
            (place, name)
            for name, (place, _) in SPLIT_OPTIONS.items()
            if not _takes_by_place(function, name)
        ]

    def __bool__(self) -> bool:
        """True if the function has no place for one of them."""
        return bool(self._without_place)

    def __call__(self, *args: Any, **kwargs: Any) -> Arguments:
        """Convert the arguments."""
        values = list(args)
        for place, name in sorted(self._without_place, reverse=True):
            if len(values) != place + 1:
                continue
            if name not in self._unknown:
                kwargs |= {name: values.pop()}
            elif values[place] is self._unknown[name][1]:
                values.pop()
        named = {
            name: self._theirs(value)
            for name, value in kwargs.items()
            if name not in self._unknown or value is not self._unknown[name][1]
        }
        return tuple(map(self._theirs, values)), named


def adapt_rows(name: str, function: Any) -> Any:
    """Return a function that takes our batches; an engine's rows always have progress."""
    if not callable(function) or inspect.isclass(function):
        return function
    if name == REORDER:
        return Adapted(function, _OURS, with_progress)
    convert = _LaterDefaults(function, _SAME)
    return Adapted(function, _SAME, convert) if name == SPLIT and convert else function


def adapt_earlier(name: str, function: Any) -> Any:
    """Return a function of vLLM up to 0.15: it takes vLLM's own class if its module names that."""
    cls = naming.earlier_batch(function)
    return adapt_rows(name, function) if cls is None else _adapt(name, function, _conversion(cls))


@cache
def _conversion(cls: type[Any]) -> Conversion:
    return Conversion(lambda: cls, _slice_class)


def adapt_v32(name: str, function: Any) -> Any:
    """Return a function of the interface vllm-0.32 with our arguments and results."""
    return _adapt(name, function, V32)


def _adapt(name: str, function: Any, conversion: Conversion) -> Any:
    if name in _CLASSES:
        return _CLASSES[name](function, conversion)
    if getattr(reference, name, None) is reference.BatchMetadataBuilder:
        return builders.own_builder(function, conversion)
    if inspect.isclass(function) or not callable(function):
        return function
    if name == "make_local_attention_virtual_batches":
        return First(function, conversion)
    if name == "make_kv_sharing_fast_prefill_common_attn_metadata":
        return Reduced(function, conversion)
    if name == REORDER:
        return Adapted(function, conversion, with_progress)
    if name == "compute_causal_conv1d_metadata" and "device" in parameters_of(function):
        return Adapted(function, conversion, offsets_on_cpu)
    if name == SPLIT:
        return Adapted(function, conversion, _LaterDefaults(function, conversion))
    return Adapted(function, conversion)


def _metadata_class() -> Any:
    """Return the batch of the vLLM that is installed, our own class without a fitting one."""
    cls = _installed("vllm.v1.attention.backend", naming.BATCH)
    fits = cls is not None and not naming.has_mirrors(cls)
    return cls if fits else vllm_batch.CommonAttentionMetadata


def _slice_class() -> Any:
    return _installed("vllm.v1.worker.ubatch_utils", "UBatchSlice")


def _installed(module: str, name: str) -> Any:
    """Return an attribute of a module, None without them; warnings of its import are not ours."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


V32 = Conversion(_metadata_class, _slice_class)
_OURS = Conversion(lambda: CommonAttentionMetadata)
_SAME = _Same(lambda: CommonAttentionMetadata)
_CLASSES: dict[str, Callable[..., Any]] = {
    "AttentionMetadataBuilder": builders.v1_builder,
    "create_fast_prefill_custom_backend": partial(
        builders.fast_prefill_backend, finish=builders.with_computed
    ),
    "CommonAttentionMetadata": builders.batch_class,
}
"""Classes that take batches, and functions that make them."""
