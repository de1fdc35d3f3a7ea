"""Malformed arguments of a cache write, each with the error that it must raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from attnproof.harness.cases.layers.cache_write import CACHES, SLOTS
from attnproof.harness.model.case import Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.operations.attention.faults import (
    KEY_CACHE,
    VALUE_CACHE,
    elsewhere,
    pair_fault,
)
from attnproof.harness.operations.shared.faults import wrong_type
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.reference.interface import MetadataError

_OTHER = {torch.float16: torch.bfloat16, torch.bfloat16: torch.float16}


def _both_caches(
    change: Callable[[torch.Tensor], torch.Tensor],
    applies: Callable[[Case], bool] = lambda _: True,
) -> Fault:
    """Return a fault that changes both halves of the cache; the error names `key_cache`."""
    return pair_fault((KEY_CACHE, VALUE_CACHE), change, applies)


def _with_last_slot(slots: torch.Tensor, value: int) -> torch.Tensor:
    slots = slots.clone()
    slots[-1] = value
    return slots


def _writes(case: Case) -> bool:
    """True if a token certainly has a slot."""
    return case.num_tokens > len(case.params["unwritten"])


def _has_slots(case: Case) -> bool:
    batch = batch_of(case)
    return batch.num_tokens + batch.padded_tokens > 0


def _has_slots_and_no_more_rows(case: Case) -> bool:
    return _has_slots(case) and not case.params["spare_rows"]


def _is_fp8(case: Case) -> bool:
    return bool(case.params["cache"] in CACHES[1:])


def _is_auto(case: Case) -> bool:
    return not _is_fp8(case)


def _has_wide_heads(case: Case) -> bool:
    p = case.params
    return bool(p["head_size"] > 1 and p["num_kv_heads"] > 1 and not p["far"])


def _heads_inside(cache: torch.Tensor) -> torch.Tensor:
    """Return the cache with interleaved heads: the elements of each head are strided."""
    return cache.transpose(2, 3).contiguous().transpose(2, 3)


def _format(
    kv_cache_dtype: Any,
    field: str = "",
    error: type[Exception] = MetadataError,
    applies: Callable[[Case], bool] = lambda _: True,
) -> Fault:
    return Fault("kv_cache_dtype", lambda _: kv_cache_dtype, field, error, applies)


FAULTS = {
    **{
        f"{name} of another type": wrong_type(name)
        for name in ("key", "value", KEY_CACHE, VALUE_CACHE, SLOTS)
    },
    **{
        f"{name} of another type": wrong_type(name, applies=_is_fp8)
        for name in ("k_scale", "v_scale")
    },
    "flat keys": Fault("key", lambda key: key.flatten(1)),
    "float32 keys": Fault("key", lambda key: key.float()),
    "float32 values": Fault("value", lambda value: value.float()),
    "values of another dtype": Fault("value", lambda value: value.to(_OTHER[value.dtype])),
    "values of more heads": Fault("value", lambda value: torch.cat([value, value], dim=1)),
    "values of larger heads": Fault("value", lambda value: torch.cat([value, value], dim=2)),
    "one key less than slots": Fault(
        "key", lambda key: key[:-1], applies=_has_slots_and_no_more_rows
    ),
    "one value less than slots": Fault(
        "value", lambda value: value[:-1], applies=_has_slots_and_no_more_rows
    ),
    "one row of both less than slots": pair_fault(
        ("key", "value"), lambda rows: rows[:-1], _has_slots_and_no_more_rows
    ),
    "caches of the other 16-bit dtype": _both_caches(
        lambda cache: cache.view(_OTHER[cache.dtype]), _is_auto
    ),
    "cache of keys and values": Fault(KEY_CACHE, lambda cache: cache[None]),
    "caches of other heads": _both_caches(lambda cache: cache[:, :, :0]),
    "caches of smaller heads": _both_caches(lambda cache: cache[..., :-1]),
    "value cache of other heads": Fault(VALUE_CACHE, lambda cache: cache[..., :-1]),
    "caches without slots": _both_caches(lambda cache: cache[:, :0]),
    "caches without blocks": Fault(
        (KEY_CACHE, VALUE_CACHE),
        lambda keys, values: (keys[:0], values[:0]),
        SLOTS,
        applies=_writes,
        cpu_only=True,
    ),
    "fewer blocks of values": Fault(VALUE_CACHE, lambda cache: cache[:-1]),
    "values in smaller blocks": Fault(
        VALUE_CACHE, lambda cache: cache[:, :-1], applies=lambda case: batch_of(case).block_size > 1
    ),
    "key cache strided in its heads": Fault(KEY_CACHE, _heads_inside, applies=_has_wide_heads),
    "value cache strided in its heads": Fault(VALUE_CACHE, _heads_inside, applies=_has_wide_heads),
    "value cache of another dtype": Fault(
        VALUE_CACHE,
        lambda cache: cache.view(torch.int16 if cache.element_size() == 2 else torch.int8),
    ),
    "float32 caches": _both_caches(lambda cache: cache[:1].float()),
    "fp8 written as it is": _format("auto", KEY_CACHE, applies=_is_fp8),
    "keys written as fp8": _format("fp8", KEY_CACHE, applies=_is_auto),
    "a format that is not specified": _format("fp8_e5m2"),
    "no format": _format(None, error=TypeError),
    "an empty format": _format(""),
    "2-D slots": Fault(SLOTS, lambda slots: slots[None]),
    "float slots": Fault(SLOTS, lambda slots: slots.double()),
    "slot beyond the cache": Fault(
        SLOTS,
        lambda slots, cache: _with_last_slot(slots, cache.shape[0] * cache.shape[1]),
        applies=_has_slots,
        cpu_only=True,
        reads=(KEY_CACHE,),
    ),
    "slot below -1": Fault(
        SLOTS, lambda slots: _with_last_slot(slots, -2), applies=_has_slots, cpu_only=True
    ),
    "no scale of the keys": Fault("k_scale", lambda _: None, error=TypeError, applies=_is_fp8),
    "scale for each head": Fault(
        "k_scale", lambda scale: scale.reshape(1).repeat(2), applies=_is_fp8
    ),
    "both scales for each head": pair_fault(
        ("k_scale", "v_scale"), lambda scale: scale.reshape(1).repeat(2), _is_fp8
    ),
    "all but the keys on another device": Fault(
        ("value", KEY_CACHE, VALUE_CACHE, SLOTS),
        lambda *tensors: tuple(map(elsewhere, tensors)),
        any_field=True,
        applies=_is_auto,
    ),
    "no element in a scale": Fault("v_scale", lambda scale: scale.reshape(1)[:0], applies=_is_fp8),
    "float64 scale": Fault("v_scale", lambda scale: scale.double(), applies=_is_fp8),
    **{f"{name} on another device": Fault(name, elsewhere) for name in ("value", SLOTS)},
    "key cache on another device": Fault(KEY_CACHE, elsewhere),
    "value cache on another device": Fault(VALUE_CACHE, elsewhere),
    "scale on another device": Fault("k_scale", elsewhere, applies=_is_fp8),
}
