"""Ways to spoil a call of attention over pages, and the error that each must get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from attnproof.harness.cases.layers.attention import OUT
from attnproof.harness.model.case import Case
from attnproof.harness.model.operation import Call, Fault
from attnproof.reference.interface import MetadataError

QUERY, KEY_CACHE, VALUE_CACHE = 0, 1, 2


def argument(
    position: int,
    field: str,
    change: Callable[[Any], Any],
    error: type[Exception] = MetadataError,
    applies: Callable[[Case], bool] = lambda _: True,
    *,
    cpu_only: bool = False,
) -> Fault:
    """Positional argument `position` changed."""

    def spoil(call: Call) -> None:
        call.args[position] = change(call.args[position])

    return Fault(field=field, spoil=spoil, error=error, applies=applies, cpu_only=cpu_only)


def keyword(
    field: str,
    make: Callable[[Call], Any],
    error: type[Exception] = MetadataError,
    applies: Callable[[Case], bool] = lambda _: True,
    *,
    cpu_only: bool = False,
) -> Fault:
    """Keyword argument `field` replaced."""

    def spoil(call: Call) -> None:
        call.kwargs[field] = make(call)

    return Fault(field=field, spoil=spoil, error=error, applies=applies, cpu_only=cpu_only)


def both_caches(
    field: str, change: Callable[[Any], Any], applies: Callable[[Case], bool] = lambda _: True
) -> Fault:
    """Both halves of the cache changed alike."""

    def spoil(call: Call) -> None:
        for position in (KEY_CACHE, VALUE_CACHE):
            call.args[position] = change(call.args[position])

    def near(case: Case) -> bool:
        return not case.params["far"] and applies(case)  # a far cache is too large for a copy

    return Fault(field=field, spoil=spoil, error=MetadataError, applies=near)


def has_keys(case: Case) -> bool:
    """Whether some request has a key, whatever is missing."""
    return case.batch is not None and any(case.batch.blocks) and not any(case.params["missing"])


def has_tokens(case: Case) -> bool:
    """Whether there is a query."""
    return case.batch is not None and case.num_tokens > 0 and not any(case.params["missing"])


def _is_quantised(case: Case) -> bool:
    return bool(case.params["cache"] != "auto")


def _is_plain(case: Case) -> bool:
    return not _is_quantised(case)


def _has_kv_heads(case: Case) -> bool:
    return bool(case.params["num_kv_heads"] > 1)


def _out(call: Call) -> torch.Tensor:
    out: torch.Tensor = call.kwargs[OUT]
    return out


def _over(position: int) -> Callable[[Call], torch.Tensor]:
    """An `out` in memory that argument `position` gets too."""

    def make(call: Call) -> torch.Tensor:
        given = call.args[position]
        out = torch.zeros_like(call.args[QUERY], memory_format=torch.contiguous_format)
        memory = out.new_zeros(given.numel() + out.numel())
        call.args[position] = memory[: given.numel()].view(given.shape)
        return memory[given.numel() - 1 :][: out.numel()].view(out.shape)

    return make


def faults(lengths: int, table: int, scale: int) -> dict[str, Fault]:
    """Faults of both operations; the positions of their arguments differ."""
    return {
        "query of another type": argument(QUERY, "query", lambda q: q.tolist(), TypeError),
        "2-D query": argument(QUERY, "query", lambda q: q.flatten(1)),
        "float32 query": argument(QUERY, "query", lambda q: q.float()),
        "heads that do not divide": argument(
            QUERY, "query", lambda q: torch.cat([q, q[:, :1]], 1), applies=_has_kv_heads
        ),
        "cache of another type": argument(KEY_CACHE, "key_cache", lambda _: "seven", TypeError),
        "cache without blocks of slots": both_caches("key_cache", lambda c: c.flatten(0, 1)),
        "cache of other heads": both_caches("key_cache", lambda c: torch.cat([c, c], 3)),
        "cache strided in its elements": both_caches(
            "key_cache", lambda c: torch.stack([c, c], -1)[..., 0], applies=_has_elements
        ),
        "values of fewer blocks": argument(VALUE_CACHE, "value_cache", lambda c: c[:-1]),
        "cache of another dtype": both_caches("key_cache", lambda c: c.float(), applies=_is_plain),
        "fp8 cache without k_scale": keyword("k_scale", lambda _: None, applies=_is_quantised),
        "fp8 cache without v_scale": keyword("v_scale", lambda _: None, applies=_is_quantised),
        "scale in float64": keyword(
            "k_scale", lambda call: call.kwargs["k_scale"].double(), applies=_is_quantised
        ),
        "a scale for each head": keyword(
            "v_scale", lambda call: call.kwargs["v_scale"].repeat(2), applies=_is_quantised
        ),
        "scale that is a number": keyword(
            "v_scale", lambda _: 1.0, TypeError, applies=_is_quantised
        ),
        "lengths of another batch": argument(
            lengths, "block_table", lambda s: torch.cat([s, s[:1]]), applies=_has_rows
        ),
        "float lengths": argument(lengths, "seq_lens", lambda s: s.float()),
        "2-D lengths": argument(lengths, "seq_lens", lambda s: s[None]),
        "lengths on another device": argument(lengths, "seq_lens", lambda s: s.to("meta")),
        "negative length": argument(
            lengths, "seq_lens", lambda s: -1 - s, applies=_has_rows, cpu_only=True
        ),
        "flat block table": argument(table, "block_table", lambda t: t.flatten()),
        "block table on another device": argument(table, "block_table", lambda t: t.to("meta")),
        "block table that is too narrow": argument(
            table, "block_table", lambda t: t[:, :0], applies=has_keys, cpu_only=True
        ),
        "block that the cache does not have": argument(
            table, "block_table", lambda t: t + 2**30, applies=has_keys, cpu_only=True
        ),
        "negative block": argument(
            table, "block_table", lambda t: -1 - t, applies=has_keys, cpu_only=True
        ),
        "score scale of another type": argument(scale, "scale", str, TypeError),
        "score scale that is no number": argument(scale, "scale", lambda _: float("nan")),
        "bound of another type": keyword("max_seq_len", lambda _: 7.5, TypeError),
        "negative bound": keyword("max_seq_len", lambda _: -1),
        "bound below the longest sequence": keyword(
            "max_seq_len", lambda _: 0, applies=has_keys, cpu_only=True
        ),
        "window of 0": keyword("sliding_window", lambda _: 0),
        "window of another type": keyword("sliding_window", lambda _: 2.0, TypeError),
        "negative soft cap": keyword("logits_soft_cap", lambda _: -1.0),
        "soft cap of another type": keyword("logits_soft_cap", lambda _: "none", TypeError),
        "infinite soft cap": keyword("logits_soft_cap", lambda _: float("inf")),
        "no out": keyword(OUT, lambda _: None, TypeError),
        "out of another shape": keyword(OUT, lambda call: _out(call)[:, :, :-1]),
        "out of integers": keyword(OUT, lambda call: _out(call).to(torch.int32)),
        "out on another device": keyword(OUT, lambda call: _out(call).to("meta")),
        "out that is the query": keyword(OUT, _over(QUERY), applies=_has_rows_of_queries),
        "out in the memory of the keys": keyword(OUT, _over(KEY_CACHE), applies=_can_overlap),
        "out in the memory of the values": keyword(OUT, _over(VALUE_CACHE), applies=_can_overlap),
    }


def _can_overlap(case: Case) -> bool:
    return _is_plain(case) and has_tokens(case) and not case.params["far"]


def _has_rows(case: Case) -> bool:
    return case.batch is not None and case.batch.num_requests > 0


def _has_elements(case: Case) -> bool:
    return bool(case.params["head_size"] > 1)


def _has_rows_of_queries(case: Case) -> bool:
    return case.batch is not None and case.num_tokens > 0
