"""Diagnosis of an engine step through the XFormers backend."""

from __future__ import annotations

from typing import Any

import torch

from attnproof.harness.cases.layers.attention import CACHE
from attnproof.harness.cases.layers.tolerance import close
from attnproof.harness.model.call import Call
from attnproof.harness.model.place import Place
from attnproof.reference import paged_attention

_PLAIN = {
    "returned": "returns something else than the output it was given",
    "rest of output kept": "output of tokens written that no row has",
}
_WINDOW, _SOFT_CAP, _SCALES = "sliding window", "soft cap", "scales of the fp8 cache"


def diagnose_step(call: Call, place: Place, expected: Any, got: Any) -> str | tuple[str, ...]:
    """Return the likely mistakes: ignored arguments with the part of the batch, or wrong slots."""
    field = place.field
    if field == "kv_cache":
        return _cache_words(call, expected, got)
    if field in _PLAIN:
        return _PLAIN[field]
    if field != "output" or not isinstance(got, torch.Tensor) or got.shape != expected.shape:
        return ""
    wrong = _wrong_rows(expected, got)
    if not wrong.any():
        return "attention is not near enough to float64"
    first_prefill = call.facts.split.tokens
    decodes, prefills = bool(wrong[:first_prefill].any()), bool(wrong[first_prefill:].any())
    part = "" if decodes and prefills else " in prefills" if prefills else " in decodes"
    fits = [
        f"{what} ignored{where}"
        for what, changes in _alternatives(call)
        if close(_attended(call, changes)[wrong], got[wrong])
        for where in dict.fromkeys((part, ""))  # decodes alone may be all that the batch has
    ]
    if fits:
        return tuple(fits)
    if not got.isfinite().all():
        return f"a slot read that no token was written to{part}"
    return f"wrong attention{part}"


def _wrong_rows(expected: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """Return (T,) bool: tokens whose output is not close enough."""
    rows = zip(expected, got, strict=True)
    return torch.tensor([not close(a[None], b[None]) for a, b in rows], dtype=torch.bool)


def _alternatives(call: Call) -> list[tuple[str, dict[str, Any]]]:
    constants = call["constants"]
    alternatives: list[tuple[str, dict[str, Any]]] = []
    if constants["sliding_window"]:
        alternatives.append((_WINDOW, {"sliding_window": None}))
    if constants["logits_soft_cap"]:
        alternatives.append((_SOFT_CAP, {"logits_soft_cap": None}))
    if alternatives:  # the same as one of those above, where the step has one of the two
        both = {"sliding_window": None, "logits_soft_cap": None}
        alternatives.append((f"{_WINDOW} and {_SOFT_CAP}", both))
    if constants["kv_cache_dtype"] != "auto":
        unit_scale = torch.ones(1, device=call["step"][CACHE].device)
        alternatives.append((_SCALES, {"k_scale": unit_scale, "v_scale": unit_scale}))
    return alternatives


def _attended(call: Call, changes: dict[str, Any]) -> torch.Tensor:
    """Return the reference's attention over the present cache, with changed arguments."""
    constants, step = call["constants"], call["step"]
    md, layer = step["attn_metadata"], step["layer"]
    out = torch.zeros(step["query"].shape, dtype=torch.float64, device=step["query"].device)
    arguments = {
        "max_query_len": md.max_query_len,
        "max_seq_len": md.max_seq_len,
        "sliding_window": constants["sliding_window"],
        "logits_soft_cap": constants["logits_soft_cap"],
        "k_scale": layer._k_scale,
        "v_scale": layer._v_scale,
    }
    paged_attention(
        step["query"],
        step[CACHE][0],
        step[CACHE][1],
        md.query_start_loc,
        md.seq_lens,
        md.block_table,
        constants["scale"],
        **arguments | changes,
        out=out,
    )
    return out[: call.facts.attention.batch.num_tokens]


def _cache_words(call: Call, expected: Any, got: Any) -> str:
    """Name the slots that are wrong: those of new tokens or others."""
    if not isinstance(got, torch.Tensor) or got.shape != expected.shape:
        return ""
    attention = call.facts.attention
    before = attention.cache_words(call.facts.before[CACHE])
    wrong = got != expected
    if not wrong.any():
        return ""
    if (expected[wrong] == before[wrong]).all():
        return "a slot written that no new token has"
    if (got[wrong] == before[wrong]).all():
        return "a new token's key or value not written"
    return "wrong key or value written"
