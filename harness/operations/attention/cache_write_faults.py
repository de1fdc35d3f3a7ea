"""Malformed arguments of a cache write, each with the error that it must get."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from attnproof.harness.cases.layers.cache_write import CACHES, SLOTS
from attnproof.harness.model.case import Case
from attnproof.harness.model.operation import Call, Fault
from attnproof.harness.operations.shared.metadata import batch_of, wrong_type
from attnproof.reference.interface import MetadataError

KEY_CACHE, VALUE_CACHE = "key_cache", "value_cache"
_OTHER = {torch.float16: torch.bfloat16, torch.bfloat16: torch.float16}
_POSITIONS = ("key", "value", KEY_CACHE, VALUE_CACHE, SLOTS, "kv_cache_dtype", "k_scale", "v_scale")


def _change(
    field: str,
    change: Callable[[Any], Any],
    applies: Callable[[Case], bool] = lambda _: True,
    *,
    error: type[Exception] = MetadataError,
    also: str = "",
    cpu_only: bool = False,
) -> Fault:
    """The argument `field`, and `also` the same way, replaced by what `change` makes of it."""

    def spoil(call: Call) -> None:
        for name in filter(None, (field, also)):
            position = _POSITIONS.index(name)
            call.args[position] = change(call.args[position])

    return Fault(field=field, spoil=spoil, error=error, applies=applies, cpu_only=cpu_only)


def _beyond(call: Call) -> None:
    """The last token's slot is the first that the cache does not have."""
    cache, slots = call.args[2], call.args[4].clone()
    slots[-1] = cache.shape[0] * cache.shape[1]
    call.args[4] = slots


def _below(call: Call) -> None:
    slots = call.args[4].clone()
    slots[-1] = -2
    call.args[4] = slots


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
    """The cache with its heads next to each other, so that none is dense."""
    return cache.transpose(2, 3).contiguous().transpose(2, 3)


def _elsewhere(tensor: torch.Tensor) -> torch.Tensor:
    """On a device that no case runs on."""
    return tensor.to("meta")


def _spelt(
    kv_cache_dtype: Any,
    error: type[Exception] = MetadataError,
    applies: Callable[[Case], bool] = lambda _: True,
) -> Fault:
    return _change("kv_cache_dtype", lambda _: kv_cache_dtype, applies, error=error)


FAULTS = {
    **{
        f"{field} of another type": wrong_type(_POSITIONS.index(field), field)
        for field in ("key", "value", KEY_CACHE, VALUE_CACHE, SLOTS)
    },
    **{
        f"{field} of another type": wrong_type(_POSITIONS.index(field), field, _is_fp8)
        for field in ("k_scale", "v_scale")
    },
    "flat keys": _change("key", lambda key: key.flatten(1)),
    "float32 keys": _change("key", lambda key: key.float()),
    "float32 values": _change("value", lambda value: value.float()),
    "values of another dtype": _change(
        "value",
        lambda value: value.to(_OTHER[value.dtype]),
    ),
    "values of more heads": _change("value", lambda value: torch.cat([value, value], dim=1)),
    "values of larger heads": _change("value", lambda value: torch.cat([value, value], dim=2)),
    "one key less than slots": _change("key", lambda key: key[:-1], _has_slots_and_no_more_rows),
    "one value less than slots": _change(
        "value", lambda value: value[:-1], _has_slots_and_no_more_rows
    ),
    "one row of both less than slots": _change(
        "key", lambda given: given[:-1], _has_slots_and_no_more_rows, also="value"
    ),
    "caches of the other 16-bit dtype": _change(
        KEY_CACHE,
        lambda cache: cache.view(_OTHER[cache.dtype]),
        _is_auto,
        also=VALUE_CACHE,
    ),
    "cache of keys and values": _change(KEY_CACHE, lambda cache: cache[None]),
    "caches of other heads": _change(KEY_CACHE, lambda cache: cache[:, :, :0], also=VALUE_CACHE),
    "caches of smaller heads": _change(KEY_CACHE, lambda cache: cache[..., :-1], also=VALUE_CACHE),
    "value cache of other heads": _change(VALUE_CACHE, lambda cache: cache[..., :-1]),
    "caches without slots": _change(KEY_CACHE, lambda cache: cache[:, :0], also=VALUE_CACHE),
    "fewer blocks of values": _change(VALUE_CACHE, lambda cache: cache[:-1]),
    "values in smaller blocks": _change(
        VALUE_CACHE, lambda cache: cache[:, :-1], lambda case: batch_of(case).block_size > 1
    ),
    "key cache strided in its heads": _change(KEY_CACHE, _heads_inside, _has_wide_heads),
    "value cache strided in its heads": _change(VALUE_CACHE, _heads_inside, _has_wide_heads),
    "value cache of another dtype": _change(
        VALUE_CACHE,
        lambda cache: cache.view(torch.int16 if cache.element_size() == 2 else torch.int8),
    ),
    "float32 caches": _change(KEY_CACHE, lambda cache: cache[:1].float(), also=VALUE_CACHE),
    "fp8 written as it is": replace(_spelt("auto", applies=_is_fp8), field=KEY_CACHE),
    "keys written as fp8": replace(_spelt("fp8", applies=_is_auto), field=KEY_CACHE),
    "a format that is not specified": _spelt("fp8_e5m2"),
    "no format": _spelt(None, TypeError),
    "an empty format": _spelt(""),
    "2-D slots": _change(SLOTS, lambda slots: slots[None]),
    "float slots": _change(SLOTS, lambda slots: slots.double()),
    "slot beyond the cache": Fault(
        field=SLOTS, spoil=_beyond, error=MetadataError, applies=_has_slots, cpu_only=True
    ),
    "slot below -1": Fault(
        field=SLOTS, spoil=_below, error=MetadataError, applies=_has_slots, cpu_only=True
    ),
    "no scale of the keys": _change("k_scale", lambda _: None, _is_fp8, error=TypeError),
    "scale for each head": _change("k_scale", lambda scale: scale.reshape(1).repeat(2), _is_fp8),
    "no element in a scale": _change("v_scale", lambda scale: scale.reshape(1)[:0], _is_fp8),
    "float64 scale": _change("v_scale", lambda scale: scale.double(), _is_fp8),
    **{f"{field} on another device": _change(field, _elsewhere) for field in ("value", SLOTS)},
    "key cache on another device": _change(KEY_CACHE, _elsewhere),
    "value cache on another device": _change(VALUE_CACHE, _elsewhere),
    "scale on another device": _change("k_scale", _elsewhere, _is_fp8),
}
