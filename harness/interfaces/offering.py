"""Our functions in the classes of an engine: they take and return its batches."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from attnproof.harness.interfaces.builders import fast_prefill_backend, v1_builder
from attnproof.harness.interfaces.conversion import Conversion, subclass_with
from attnproof.harness.interfaces.functions import V32, Adapted
from attnproof.reference.interface import UBatchSlice
from attnproof.reference.shared import CommonAttentionMetadata, CommonAttentionMetadataV32

_ENGINES = "_attnproof_engine_batch"
"""Attribute of our metadata: the engine's metadata that it was made of."""
_FIELDS = tuple(f.name for f in fields(CommonAttentionMetadataV32))
_DERIVED = ("seq_lens_cpu", "num_computed_tokens_cpu", "encoder_seq_lens")


class Offering:
    """Conversion of an engine's arguments to ours, and of our results to the engine's.

    It has the methods of `Conversion`, with the roles of both sides exchanged.
    """

    def __init__(self, conversion: Conversion) -> None:
        self.conversion = conversion

    @property
    def metadata_class(self) -> Any:
        """The engine's class of a batch."""
        return self.conversion.metadata_class

    def theirs(self, value: Any) -> Any:
        """Convert an argument: batches, micro-batches and lists of them."""
        slice_class = self.conversion.slice_class
        if isinstance(value, self.conversion.metadata_class):
            return self._our_metadata(value)
        if slice_class is not None and isinstance(value, slice_class):
            return UBatchSlice(value.request_slice, value.token_slice)
        return [self.theirs(entry) for entry in value] if type(value) is list else value

    def _our_metadata(self, metadata: Any) -> CommonAttentionMetadata:
        values = {name: getattr(metadata, name) for name in _FIELDS if name not in _DERIVED}
        computed = metadata.seq_lens - metadata.query_start_loc.diff()
        values["num_computed_tokens_cpu"] = computed.to(metadata.seq_lens.dtype).cpu()
        values["seq_lens_cpu"] = metadata.seq_lens.cpu()
        values["encoder_seq_lens"] = metadata.encoder_seq_lens_cpu
        cls: Any = CommonAttentionMetadataV32
        kind: Any = type(metadata)
        if kind is not self.conversion.metadata_class:
            cls = subclass_with(cls, kind, self.conversion.metadata_class)
            values |= {
                f.name: getattr(metadata, f.name) for f in fields(cls) if f.name not in values
            }
        converted: CommonAttentionMetadata = cls(**values)
        setattr(converted, _ENGINES, metadata)
        return converted

    def ours(self, value: Any, batch: Any = None) -> Any:
        """Convert a result: batches, micro-batches, and lists and tuples of them."""
        if isinstance(value, CommonAttentionMetadata):
            return getattr(value, _ENGINES, None) or self._their_metadata(value, batch)
        if type(value) is UBatchSlice:
            return self.conversion.theirs(value)
        if type(value) in (list, tuple):
            return type(value)(self.ours(entry, batch) for entry in value)
        return value

    def _their_metadata(self, metadata: CommonAttentionMetadata, batch: Any) -> Any:
        converted = self.conversion.detached(metadata)
        bound = getattr(batch, "seq_lens_cpu_upper_bound", None)
        if bound is not None and torch.equal(bound, batch.seq_lens.cpu()):
            converted.seq_lens_cpu_upper_bound = metadata.seq_lens_cpu
        return converted

    def write_back(self, value: Any) -> None:
        """Do nothing: our functions assign no field of their arguments."""


class _Offered(Adapted):
    """A function of ours that takes the engine's arguments and returns the engine's results."""

    def unbind(self, result: Any, *args: Any, **kwargs: Any) -> Any:
        """Convert a result of our function to the engine's."""
        batches = self.conversion.metadata_class
        values = (*args, *kwargs.values())
        batch = next((arg for arg in values if isinstance(arg, batches)), None)
        return self.conversion.ours(result, batch)


class _Local(_Offered):
    """Local attention of vLLM 0.32, which also returns a function to make the table again."""

    def unbind(self, result: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the engine's batch, and a function from a block table to that of the batch."""
        local_batch = super().unbind(result, *args, **kwargs)
        arguments = inspect.signature(self.function).bind(*args, **kwargs).arguments
        chunk, metadata, block_size = arguments.values()

        def table_of(block_table: torch.Tensor) -> torch.Tensor:
            changed = metadata.replace(block_table_tensor=block_table)
            table: torch.Tensor = self(chunk, changed, block_size)[0].block_table_tensor
            return table

        return local_batch, table_of


def _conv1d(function: Callable[..., Any]) -> Callable[..., Any]:
    def compute_causal_conv1d_metadata(query_start_loc_p_cpu: Any, *, device: Any) -> Any:
        """Return the metadata of offsets on the CPU, on the device."""
        return function(query_start_loc_p_cpu.to(device))

    return compute_causal_conv1d_metadata


def offered_as(interface: str, module: Any) -> Any:
    """Return the functions and classes of `reference` or `optimized` in an engine's classes.

    `interface` is "vllm-0.32": the objects take and return its CommonAttentionMetadata, that of
    the vLLM where a fitting one is installed. They have its signatures, so that they can stand
    in the place of its own. Raises ValueError for any other interface.
    """
    if interface != "vllm-0.32":
        raise ValueError(f"interface is {interface!r}, expected 'vllm-0.32'")
    offering: Any = Offering(V32)
    special: dict[str, Callable[[Any], Any]] = {
        "AttentionMetadataBuilder": partial(v1_builder, conversion=offering),
        "create_fast_prefill_custom_backend": partial(fast_prefill_backend, conversion=offering),
        "CommonAttentionMetadata": lambda _: V32.metadata_class,
        "make_local_attention_virtual_batches": partial(_Local, conversion=offering),
        "compute_causal_conv1d_metadata": _conv1d,
    }
    offered = {}
    for name in (*module.__all__, "_make_metadata_with_slice"):
        part = getattr(module, name)
        if name in special:
            part = special[name](part)
        elif inspect.isfunction(part):
            part = _Offered(part, offering)
        offered[name] = part
    return SimpleNamespace(**offered)
