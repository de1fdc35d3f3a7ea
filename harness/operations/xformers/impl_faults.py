"""Malformed arguments of the XFormers implementation (SPEC.md section 8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from attnproof.harness.cases.layers.attention import CACHE, KEY, QUERY, VALUE
from attnproof.harness.model.case import Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.reference.interface import MetadataError

_BEYOND_CACHE = 1 << 20
_OUTPUTS = ("output", "output_scale", "output_block_scale")
"""Arguments of `forward` that a profiling run checks."""


def _constant(field: str, value: Any, error: type[Exception] = MetadataError) -> Fault:
    """Return a fault of an argument of the constructor."""
    return Fault("constants", lambda constants: constants | {field: value}, field, error)


def _step(
    field: str,
    change: Callable[[dict[str, Any]], Any],
    error: type[Exception] = MetadataError,
    applies: Callable[[Case], bool] = lambda _: True,
) -> Fault:
    """Return a fault of an argument of `forward`; `change` gets all arguments."""
    any_run = field in _OUTPUTS

    def possible(case: Case) -> bool:
        return (any_run or not case.params["profile"]) and applies(case)

    return Fault("step", lambda step: step | {field: change(step)}, field, error, possible)


def _metadata(
    field: str,
    change: Callable[[Any], dict[str, Any]],
    applies: Callable[[Case], bool] = lambda _: True,
    *,
    cpu_only: bool = False,
) -> Fault:
    """Return a fault of the step's metadata: `change` returns the fields that get other values."""

    def changed(step: dict[str, Any]) -> dict[str, Any]:
        metadata = step["attn_metadata"]
        return step | {"attn_metadata": replace(metadata, **change(metadata))}

    def possible(case: Case) -> bool:
        return not case.params["profile"] and applies(case)

    return Fault("step", changed, field, applies=possible, cpu_only=cpu_only)


def _has_tokens(case: Case) -> bool:
    return case.num_tokens > 0


def _has_decodes(case: Case) -> bool:
    """True if a decode's token is before a prefill."""
    lens = batch_of(case).query_lens
    split = next((row for row, query in enumerate(lens) if query > 1), len(lens))
    return sum(lens[:split]) > 0 and split < len(lens)


def _has_sequences(case: Case) -> bool:
    batch = batch_of(case)
    return any(q + c for q, c in zip(batch.query_lens, batch.computed_lens, strict=True))


def _is_fp8(case: Case) -> bool:
    return case.params["cache"] != "auto" and not case.params["profile"]


def _scale_of_float64(step: dict[str, Any]) -> dict[str, Any]:
    scale = torch.ones(1, dtype=torch.float64)
    return step | {"layer": SimpleNamespace(**vars(step["layer"]) | {"_k_scale": scale})}


def _other_half(tensor: torch.Tensor) -> torch.Tensor:
    half = torch.float16 if tensor.dtype is torch.bfloat16 else torch.bfloat16
    return tensor.to(half)


def _fewer(step: dict[str, Any], name: str) -> torch.Tensor:
    """Return one row less than the step has tokens."""
    rows: torch.Tensor = step[name][: step["attn_metadata"].num_actual_tokens - 1]
    return rows


_CONSTRUCTION = {
    "KV sharing": _constant("kv_sharing_target_layer_name", "layer.0", NotImplementedError),
    "alibi slopes": _constant("alibi_slopes", [0.5], NotImplementedError),
    "encoder attention": _constant("attn_type", "encoder", NotImplementedError),
    "cross attention": _constant("attn_type", "encoder_decoder", NotImplementedError),
    "head size that is no multiple of 8": _constant("head_size", 33),
    "head size above 256": _constant("head_size", 264),
    "head size below 32": _constant("head_size", 24),
    "heads that do not divide": _constant("num_kv_heads", 7919),
    "no key heads": _constant("num_kv_heads", 0),
    "window of 0": _constant("sliding_window", 0),
    "window of another type": _constant("sliding_window", "seven", TypeError),
    "negative soft cap": _constant("logits_soft_cap", -1.0),
    "soft cap of NaN": _constant("logits_soft_cap", float("nan")),
    "cache of another dtype": _constant("kv_cache_dtype", "int4"),
    "scale of infinity": _constant("scale", float("inf")),
    "scale of another type": _constant("scale", "seven", TypeError),
}
_STEP = {
    "no output": _step("output", lambda _: None),
    "output of another type": _step("output", lambda _: [0.0], TypeError),
    "fused quantisation": _step("output_scale", lambda _: torch.ones(1), NotImplementedError),
    "fused quantisation by blocks": _step(
        "output_block_scale", lambda _: torch.ones(1), NotImplementedError
    ),
    "output that is the query": _step(
        "output",
        lambda step: step[QUERY],
        applies=lambda case: not case.params["profile"] and _has_tokens(case),
    ),
    "output of other heads": _step(
        "output",
        lambda step: step[QUERY].new_zeros(3, 1, 24),
        applies=lambda case: not case.params["profile"],
    ),
    "cache that is flat": _step(CACHE, lambda step: step[CACHE][0]),
    "cache with blocks before halves": _step(CACHE, lambda step: step[CACHE].transpose(0, 1)),
    "cache of other heads": _step(CACHE, lambda step: step[CACHE][..., :-8]),
    "cache of floats": _step(
        CACHE,
        lambda step: (
            step[CACHE].new_zeros(1, dtype=torch.float32).expand(step[CACHE].shape).contiguous()
        ),
    ),
    "cache of another type": _step(CACHE, lambda _: None, TypeError),
    "cache on another device": _step(CACHE, lambda step: step[CACHE].to("meta")),
    "query of other heads": _step(QUERY, lambda step: step[QUERY][:, :, :-8]),
    "query of floats": _step(QUERY, lambda step: step[QUERY].float()),
    "query that is flat": _step(QUERY, lambda step: step[QUERY].flatten(1)),
    "key of another type": _step(KEY, lambda _: None, TypeError),
    "key on another device": _step(KEY, lambda step: step[KEY].to("meta")),
    "key of another dtype": _step(KEY, lambda step: _other_half(step[KEY])),
    "value of other heads": _step(VALUE, lambda step: step[VALUE][:, :, 8:]),
    "more tokens than keys": _step(KEY, lambda step: _fewer(step, KEY), applies=_has_tokens),
    "more tokens than values": _step(VALUE, lambda step: _fewer(step, VALUE), applies=_has_tokens),
    "more tokens than queries": _step(QUERY, lambda step: _fewer(step, QUERY), applies=_has_tokens),
    "metadata of another type": _step("attn_metadata", lambda _: "seven", TypeError),
    "scale of float64": Fault("step", _scale_of_float64, "_k_scale", applies=_is_fp8),
}
_BATCH = {
    "block table on another device": _metadata(
        "block_table", lambda md: {"block_table": md.block_table.to("meta")}
    ),
    "lengths on another device": _metadata(
        "seq_lens", lambda md: {"seq_lens": md.seq_lens.to("meta")}
    ),
    "flat block table": _metadata(
        "block_table", lambda md: {"block_table": md.block_table.flatten()}
    ),
    "int32 slots": _metadata("slot_mapping", lambda md: {"slot_mapping": md.slot_mapping.int()}),
    "too few slots": _metadata(
        "slot_mapping",
        lambda md: {"slot_mapping": md.slot_mapping[: md.num_actual_tokens - 1]},
        _has_tokens,
    ),
    "offsets of another batch": _metadata(
        "query_start_loc", lambda md: {"num_prefills": md.num_prefills + 1}
    ),
    "more tokens in its parts than in all": _metadata(
        "num_actual_tokens", lambda md: {"num_actual_tokens": md.num_actual_tokens - 1}, _has_tokens
    ),
    "boundary within a row": _metadata(
        "num_decode_tokens",
        lambda md: {
            "num_decode_tokens": md.num_decode_tokens - 1,
            "num_prefill_tokens": md.num_prefill_tokens + 1,
        },
        _has_decodes,
        cpu_only=True,
    ),
    "slots beyond the cache": _metadata(
        "slot_mapping",
        lambda md: {"slot_mapping": md.slot_mapping + _BEYOND_CACHE},
        _has_tokens,
        cpu_only=True,
    ),
    "slots below -1": _metadata(
        "slot_mapping",
        lambda md: {"slot_mapping": -2 - md.slot_mapping.abs()},
        _has_tokens,
        cpu_only=True,
    ),
    "blocks beyond the cache": _metadata(
        "block_table",
        lambda md: {"block_table": md.block_table + _BEYOND_CACHE},
        _has_sequences,
        cpu_only=True,
    ),
    "table too narrow": _metadata(
        "block_table",
        lambda md: {"block_table": md.block_table[:, :0]},
        _has_sequences,
        cpu_only=True,
    ),
    "bound below the longest sequence": _metadata(
        "max_seq_len",
        lambda md: {"max_seq_len": int(md.seq_lens.max()) - 1},
        _has_sequences,
        cpu_only=True,
    ),
    "bound below the longest query": _metadata(
        "max_query_len",
        lambda md: {"max_query_len": int(md.query_start_loc.diff().max()) - 1},
        _has_tokens,
        cpu_only=True,
    ),
    "negative length": _metadata(
        "seq_lens", lambda md: {"seq_lens": -1 - md.seq_lens}, _has_sequences, cpu_only=True
    ),
    "negative length of the last row": _metadata(
        "seq_lens",
        lambda md: {"seq_lens": torch.cat([md.seq_lens[:-1], -1 - md.seq_lens[-1:]])},
        _has_sequences,
        cpu_only=True,
    ),
    "offsets that do not start at 0": _metadata(
        "query_start_loc",
        lambda md: {"query_start_loc": md.query_start_loc + 1},
        cpu_only=True,
    ),
}
FAULTS = {**_CONSTRUCTION, **_STEP, **_BATCH}
