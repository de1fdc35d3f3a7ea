"""Functions of engines under our names; arguments are converted before the clock starts."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np

from attnproof.harness.interfaces import builders, vllm_batch
from attnproof.harness.interfaces.conversion import Conversion
from attnproof.harness.model.call import Thunk
from attnproof.harness.operations.batch.reorder import REORDER
from attnproof.reference.shared import CommonAttentionMetadata

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Convert = Callable[..., Arguments]


class Adapted:
    """A function of an engine that takes our arguments and returns our results."""

    def __init__(
        self, function: Callable[..., Any], conversion: Conversion, convert: Convert | None = None
    ) -> None:
        """`convert` takes our arguments and returns the engine's; by default batches change."""
        self.function = function
        self.conversion = conversion
        self.convert = convert or self._converted
        self.__name__ = function.__name__

    def _converted(self, *args: Any, **kwargs: Any) -> Arguments:
        theirs = self.conversion.theirs
        return tuple(map(theirs, args)), {name: theirs(value) for name, value in kwargs.items()}

    def bind(self, *args: Any, **kwargs: Any) -> Thunk:
        """Convert the arguments now; return the engine's own function bound to them."""
        args, kwargs = self.convert(*args, **kwargs)
        return partial(self.function, *args, **kwargs)

    def unbind(self, result: Any, *args: Any, **_: Any) -> Any:
        """Convert a result of the engine's own function back."""
        given = next((one for one in args if isinstance(one, CommonAttentionMetadata)), None)
        return self.conversion.ours(result, given)

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

    def unbind(self, result: Any, given: Any, *args: Any, **kwargs: Any) -> Any:
        """Convert the batch back; its computed tokens are those of the given batch."""
        return builders.with_computed(super().unbind(result, given, *args, **kwargs), given)


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
    if not hasattr(input_batch, "req_ids") or hasattr(input_batch, "num_computed_tokens_cpu"):
        return (input_batch, *args), kwargs
    return (InputBatch(input_batch, len(input_batch.req_ids)), *args), kwargs


def offsets_on_cpu(query_start_loc_p: Any) -> Arguments:
    """Convert for a later engine, which takes offsets on the CPU and a device."""
    return (query_start_loc_p.cpu(),), {"device": query_start_loc_p.device}


def adapt_v32(name: str, function: Any) -> Any:
    """Return a function of the interface vllm-0.32 with our arguments and results."""
    if name in _CLASSES:
        return _CLASSES[name](function, V32)
    if inspect.isclass(function) or not callable(function):
        return function
    if name == "make_local_attention_virtual_batches":
        return First(function, V32)
    if name == "make_kv_sharing_fast_prefill_common_attn_metadata":
        return Reduced(function, V32)
    if name == REORDER:
        return Adapted(function, V32, with_progress)
    if name == "compute_causal_conv1d_metadata":
        return Adapted(function, V32, offsets_on_cpu)
    return Adapted(function, V32)


def _metadata_class() -> Any:
    """Return the batch of the vLLM that is installed, our own class without a fitting one."""
    found = _installed("vllm.v1.attention.backend", "CommonAttentionMetadata")
    names = {f.name for f in fields(found)} if found is not None else set()
    fits = "is_prefilling" in names and "seq_lens_cpu" not in names
    return found if fits else vllm_batch.CommonAttentionMetadata


def _installed(module: str, name: str) -> Any:
    """Return an attribute of a module, None without them; warnings of its import are not ours."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


V32 = Conversion(_metadata_class, partial(_installed, "vllm.v1.worker.ubatch_utils", "UBatchSlice"))
_CLASSES: dict[str, Callable[..., Any]] = {
    "AttentionMetadataBuilder": builders.v1_builder,
    "create_fast_prefill_custom_backend": partial(
        builders.fast_prefill_backend, finish=builders.with_computed
    ),
    "CommonAttentionMetadata": builders.batch_class,
}
"""Classes that take batches, and functions that make them."""
