"""Malformed calls of `paged_attention` and `decode_attention`, each with the error to raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from attnproof.harness.cases.layers.attention import OUT
from attnproof.harness.model.case import Case
from attnproof.harness.model.fault import Fault

QUERY, KEY_CACHE, VALUE_CACHE = "query", "key_cache", "value_cache"


def pair_fault(
    parameters: tuple[str, str],
    change: Callable[[torch.Tensor], Any],
    applies: Callable[[Case], bool] = lambda _: True,
) -> Fault:
    """Return a fault of two parameters that change in the same way; the error names the first."""
    return Fault(parameters, lambda first, other: (change(first), change(other)), applies=applies)


def elsewhere(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor on a device that no case runs on."""
    return tensor.to("meta")


def has_keys(case: Case) -> bool:
    """True if some request has a key and no sequence is shortened."""
    return case.batch is not None and any(case.batch.blocks) and not any(case.params["missing"])


def has_tokens(case: Case) -> bool:
    """True if there is a query and no sequence is shortened."""
    return case.batch is not None and case.num_tokens > 0 and not any(case.params["missing"])


def _is_quantised(case: Case) -> bool:
    return bool(case.params["cache"] != "auto")


def _is_plain(case: Case) -> bool:
    return not _is_quantised(case)


def _is_near(case: Case) -> bool:
    return not case.params["far"]


def _has_kv_heads(case: Case) -> bool:
    return bool(case.params["num_kv_heads"] > 1)


def _has_rows(case: Case) -> bool:
    return case.batch is not None and case.batch.num_requests > 0


def _has_elements(case: Case) -> bool:
    return bool(case.params["head_size"] > 1)


def _has_rows_of_queries(case: Case) -> bool:
    return case.batch is not None and case.num_tokens > 0


def _can_overlap(case: Case) -> bool:
    return _is_plain(case) and has_tokens(case) and _is_near(case)


def both_caches(
    change: Callable[[torch.Tensor], Any], applies: Callable[[Case], bool] = lambda _: True
) -> Fault:
    """Return a fault that changes both halves of the cache; the error names `key_cache`."""

    def near(case: Case) -> bool:
        return _is_near(case) and applies(case)  # a far cache is too large for a copy

    return pair_fault((KEY_CACHE, VALUE_CACHE), change, near)


def out_over(parameter: str, applies: Callable[[Case], bool]) -> Fault:
    """Return the fault of an `out` that starts at the last element of another argument."""

    def change(
        tensor: torch.Tensor, _: torch.Tensor, query: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out = torch.zeros_like(query, memory_format=torch.contiguous_format)
        memory = out.new_zeros(tensor.numel() + out.numel())
        moved = memory[: tensor.numel()].view(tensor.shape)
        return moved, memory[tensor.numel() - 1 :][: out.numel()].view(out.shape)

    return Fault((parameter, OUT), change, OUT, applies=applies, reads=(QUERY,))


def _on_cpu(
    parameter: str,
    change: Callable[[Any], Any],
    field: str = "",
    applies: Callable[[Case], bool] = has_keys,
) -> Fault:
    """Return a fault that only a tensor's values show: a check can detect it on the CPU only."""
    return Fault(parameter, change, field, applies=applies, cpu_only=True)


def _type_error(
    parameter: str, change: Callable[[Any], Any], applies: Callable[[Case], bool] = lambda _: True
) -> Fault:
    return Fault(parameter, change, error=TypeError, applies=applies)


FAULTS = {
    "query of another type": _type_error(QUERY, lambda q: q.tolist()),
    "2-D query": Fault(QUERY, lambda q: q.flatten(1)),
    "float32 query": Fault(QUERY, lambda q: q.float()),
    "heads that do not divide": Fault(
        QUERY, lambda q: torch.cat([q, q[:, :1]], 1), applies=_has_kv_heads
    ),
    "cache of another type": _type_error(KEY_CACHE, lambda _: "seven"),
    "cache without blocks of slots": both_caches(lambda c: c.flatten(0, 1)),
    "cache of other heads": both_caches(lambda c: torch.cat([c, c], 3)),
    "cache strided in its elements": both_caches(
        lambda c: torch.stack([c, c], -1)[..., 0], _has_elements
    ),
    "values of fewer blocks": Fault(VALUE_CACHE, lambda c: c[:-1]),
    "cache of another dtype": both_caches(lambda c: c.float(), _is_plain),
    "fp8 cache without k_scale": Fault("k_scale", lambda _: None, applies=_is_quantised),
    "fp8 cache without v_scale": Fault("v_scale", lambda _: None, applies=_is_quantised),
    "scale in float64": Fault("k_scale", lambda s: s.double(), applies=_is_quantised),
    "a scale for each head": Fault("v_scale", lambda s: s.repeat(2), applies=_is_quantised),
    "scale that is a number": _type_error("v_scale", lambda _: 1.0, _is_quantised),
    "lengths of another batch": Fault(
        "seq_lens", lambda s: torch.cat([s, s[:1]]), "block_table", applies=_has_rows
    ),
    "float lengths": Fault("seq_lens", lambda s: s.float()),
    "2-D lengths": Fault("seq_lens", lambda s: s[None]),
    "lengths on another device": Fault("seq_lens", elsewhere),
    "negative length": _on_cpu("seq_lens", lambda s: -1 - s, applies=_has_rows),
    "negative length of the last row": _on_cpu(
        "seq_lens", lambda s: torch.cat([s[:-1], -1 - s[-1:]]), applies=_has_rows
    ),
    "flat block table": Fault("block_table", lambda t: t.flatten()),
    "block table on another device": Fault("block_table", elsewhere),
    "block table that is too narrow": _on_cpu("block_table", lambda t: t[:, :0]),
    "block that the cache does not have": _on_cpu("block_table", lambda t: t + 2**30),
    "negative block": _on_cpu("block_table", lambda t: -1 - t),
    "score scale of another type": _type_error("scale", str),
    "score scale that is no number": Fault("scale", lambda _: float("nan")),
    "bound of another type": _type_error("max_seq_len", lambda _: 7.5),
    "negative bound": Fault("max_seq_len", lambda _: -1),
    "bound below the longest sequence": _on_cpu("max_seq_len", lambda _: 0),
    "window of 0": Fault("sliding_window", lambda _: 0),
    "window of another type": _type_error("sliding_window", lambda _: 2.0),
    "negative soft cap": Fault("logits_soft_cap", lambda _: -1.0),
    "soft cap of another type": _type_error("logits_soft_cap", lambda _: "none"),
    "infinite soft cap": Fault("logits_soft_cap", lambda _: float("inf")),
    "no out": _type_error(OUT, lambda _: None),
    "out of another shape": Fault(OUT, lambda out: out[:, :, :-1]),
    "out of integers": Fault(OUT, lambda out: out.to(torch.int32)),
    "out on another device": Fault(OUT, elsewhere),
    "out that is the query": out_over(QUERY, _has_rows_of_queries),
    "out in the memory of the keys": out_over(KEY_CACHE, _can_overlap),
    "out in the memory of the values": out_over(VALUE_CACHE, _can_overlap),
}
"""Faults that both operations have."""

PAGED_FAULTS = FAULTS | {
    "offsets of another type": _type_error("query_start_loc", lambda o: o.tolist()),
    "float offsets": Fault("query_start_loc", lambda o: o.float()),
    "offsets of another batch": Fault("query_start_loc", lambda o: o[:0]),
    "offsets on another device": Fault("query_start_loc", elsewhere),
    "offsets that do not start at 0": _on_cpu(
        "query_start_loc", lambda o: o + 1, applies=lambda _: True
    ),
    "offsets that fall": _on_cpu(
        "query_start_loc",
        lambda o: o - o[-1] * (o == o[-1]) - (o == o[-1]).to(o.dtype),
        applies=has_tokens,
    ),
    "fewer queries than the offsets say": _on_cpu(
        "query_start_loc", lambda o: o + 10**6 * (o == o[-1]), QUERY, has_tokens
    ),
    "query bound below the longest query": _on_cpu(
        "max_query_len", lambda _: 0, applies=has_tokens
    ),
    "negative query bound": Fault("max_query_len", lambda _: -1),
    "query bound of another type": _type_error("max_query_len", lambda _: 2.0),
}
"""Faults of `paged_attention`."""

DECODE_FAULTS = FAULTS | {
    "more queries than requests": pair_fault(
        (QUERY, OUT), lambda rows: torch.cat([rows, rows[:1]]), _has_rows
    ),
}
"""Faults of `decode_attention`."""
