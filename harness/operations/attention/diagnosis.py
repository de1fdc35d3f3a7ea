"""Diagnosis of attention: a mistaken computation that gives the candidate's result.

Each alternative is a mistake that a kernel can make. An alternative is the
diagnosis if its result for the wrong tokens is within the tolerance of the candidate's result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from attnproof.harness.cases.layers.attention import OUT
from attnproof.harness.cases.layers.tolerance import close
from attnproof.harness.model.call import Call
from attnproof.harness.model.place import Place

if TYPE_CHECKING:
    from attnproof.harness.operations.attention.prepared import PreparedAttention

_MOST_SCORES = 1 << 22
"""Largest number of scores in a case that is diagnosed; larger cases are shrunk first."""
_LARGEST_SCORE = 88
"""Largest score whose exponential a float32 holds."""


def diagnose(call: Call, place: Place, expected: Any, got: Any) -> str | tuple[str, ...]:
    """Return the mistakes that give the result, "" if the two results are not comparable."""
    prepared: PreparedAttention = call.facts.prepared
    if place.field == "untouched":
        return "a row of no query is written"
    comparable = isinstance(got, torch.Tensor) and got.shape == expected.shape
    if place.field != OUT or not comparable or got.dtype != prepared.shape.dtype:
        return ""
    wrong = _wrong_rows(expected, got)
    if _is_unwritten(call, wrong):
        return "a query's result is not written"
    tokens = prepared.tokens * prepared.shape.num_heads
    is_small, view = tokens * max(1, prepared.max_seq_len) <= _MOST_SCORES, _View(prepared)
    if not bool(torch.isfinite(got.double()).all()):
        # A slot that was never written holds NaN too, but its row needs no large score.
        if is_small and _overflow(_right(prepared, view), got):
            return f"softmax overflows: scores above {_LARGEST_SCORE}"
        return "reads a slot that was never written (NaN)"
    fits = [
        text
        for text, changed in (_alternatives(prepared, view) if is_small else ())
        if close(changed.attended().to(got.device)[wrong], got[wrong])
    ]
    if fits:
        return tuple(dict.fromkeys(fits))
    if bool((got[wrong] == 0).all()):
        return "zeros where there are keys"
    if bool((expected[wrong] == 0).all()):
        return "not zero where no key is seen"
    return "attention is wrong"


def _wrong_rows(expected: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """Return (T,) bool, True for tokens that are not close, or for all tokens if each is close."""
    rows = [not close(e[None], g[None]) for e, g in zip(expected, got, strict=True)]
    return torch.tensor(rows if any(rows) else [True] * len(rows), device=got.device)


def _is_unwritten(call: Call, wrong: torch.Tensor) -> bool:
    prepared: PreparedAttention = call.facts.prepared
    out = call[OUT]
    words = out.view(prepared.before.dtype)[: prepared.tokens]
    same = words == prepared.before[: prepared.tokens]
    return bool(wrong.any()) and bool(same[wrong].all())


def _overflow(right: _View, got: torch.Tensor) -> bool:
    """True if each row that is not finite has a score whose exponential overflows."""
    finite = torch.isfinite(got.double()).flatten(1).all(1).cpu()
    return bool((right.largest_scores()[~finite] > _LARGEST_SCORE).all())


@dataclass(frozen=True)
class _View:
    """Attention over gathered keys, with parameters for mistakes."""

    prepared: PreparedAttention
    window: int | None = None
    soft_cap: float | None = None
    scale: float = 1.0
    scale_last: bool = False
    """True to scale scores after the soft cap."""
    k_scale: float = 1.0
    v_scale: float = 1.0
    keys_beyond: int = 0
    """Number of keys behind its own position that each query attends to."""
    all_keys: bool = False
    first_key: int = 0
    whole_pages: bool = False
    """True to ignore a last page that is not full."""
    from_top: bool = False
    """True to give query i position i."""
    row_shift: int = 0
    """Difference between the row of the block table that is read and the request's own."""
    column_shift: int = 0
    kv_head: Callable[[torch.Tensor, int, int], torch.Tensor] = lambda head, group, _kv_heads: (
        head // group
    )

    def attended(self) -> torch.Tensor:
        """Return (T, Hq, D) float64 attention, with 0 in place of NaN of unwritten slots."""
        rows = []
        for scores, values in self._rows():
            weights = torch.softmax(scores, dim=-1).nan_to_num(0.0)
            rows.append(torch.einsum("qhj,jhd->qhd", weights, values))
        return torch.cat(rows) if rows else torch.zeros(0, *self.prepared.query.shape[1:]).double()

    def largest_scores(self) -> torch.Tensor:
        """Return (T,) float64 the largest score of each query token, -inf for one without a key."""
        rows = []
        for scores, _ in self._rows():
            nothing = scores.new_full((*scores.shape[:2], 1), -torch.inf)
            rows.append(torch.cat([scores, nothing], dim=-1).flatten(1).amax(1))
        return torch.cat(rows) if rows else torch.zeros(0).double()

    def _rows(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield scores (q, Hq, n), -inf if masked, and values (n, Hq, D) of each request."""
        batch = self.prepared.batch
        for row, (queries, computed) in enumerate(
            zip(batch.query_lens, batch.computed_lens, strict=True)
        ):
            first = sum(batch.query_lens[:row])
            query = self.prepared.query[first : first + queries].cpu().double()
            yield self._of_row(row, query, 0 if self.from_top else computed, computed)

    def _of_row(
        self, row: int, query: torch.Tensor, first: int, computed: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        length = max(0, computed + len(query))
        keys, values = self._held(row, length)
        length = keys.shape[0]
        heads = torch.arange(query.shape[1])
        picked = self.kv_head(heads, query.shape[1] // keys.shape[1], keys.shape[1])
        scores = torch.einsum("qhd,jhd->qhj", query, keys[:, picked])
        scores = scores if self.scale_last else scores * self.scale
        if self.soft_cap:
            scores = self.soft_cap * torch.tanh(scores / self.soft_cap)
        scores = scores * self.scale if self.scale_last else scores
        position = (first + torch.arange(len(query)))[:, None]
        key = torch.arange(length)
        visible = (key <= position + self.keys_beyond) & (key >= self.first_key)
        visible |= torch.tensor(self.all_keys)
        if self.window is not None:
            visible &= position - key < self.window
        return scores.masked_fill(~visible[:, None], -torch.inf), values[:, picked]

    def _held(self, row: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (n, Hkv, D) float64 keys and values of the blocks that are read."""
        batch, table = self.prepared.batch, self.prepared.arena.tensors["block_table"].cpu()
        size = batch.block_size
        if self.whole_pages:
            length = length // size * size
        length += max(0, self.keys_beyond)
        columns = torch.arange(length) // size + self.column_shift
        kept = (columns >= 0) & (columns < table.shape[1])
        blocks = table[(row + self.row_shift) % len(table)][columns[kept]].long()
        places = (torch.arange(length) % size)[kept]
        inside = (blocks >= 0) & (blocks < self.prepared.cache.shape[1])
        held = []
        for half, scale in ((0, self.k_scale), (1, self.v_scale)):
            cache = self.prepared.cache[half]
            quantised = cache.itemsize == 1
            cache = cache.view(torch.uint8) if quantised else cache
            picked = cache[blocks[inside].to(cache.device), places[inside].to(cache.device)].cpu()
            picked = picked.view(torch.float8_e4m3fn) if quantised else picked
            held.append(picked.double().nan_to_num(0.0) * (scale if quantised else 1.0))
        return held[0], held[1]


def _right(prepared: PreparedAttention, view: _View) -> _View:
    """Return the view of a kernel without a mistake."""
    return replace(
        view,
        window=prepared.sliding_window,
        soft_cap=prepared.soft_cap,
        scale=prepared.scale,
        k_scale=prepared.shape.k_scale,
        v_scale=prepared.shape.v_scale,
    )


def _alternatives(prepared: PreparedAttention, view: _View) -> Iterator[tuple[str, _View]]:
    shape, window, cap = prepared.shape, prepared.sliding_window, prepared.soft_cap
    right = _right(prepared, view)
    if window:
        yield "sliding window ignored", replace(right, window=None)
    if cap:
        yield "soft cap ignored", replace(right, soft_cap=None)
        yield "soft cap taken before the scale", replace(right, scale_last=True)
    if window or cap:  # the same as one of those above, where the case has one of the two
        yield "sliding window and soft cap ignored", replace(right, window=None, soft_cap=None)
    if window:
        yield "window one key too wide", replace(right, window=window + 1)
        yield "window one key too narrow", replace(right, window=window - 1)
    if shape.cache != "auto":
        yield "fp8 scales forgotten", replace(right, k_scale=1.0, v_scale=1.0)
        yield "k_scale forgotten", replace(right, k_scale=1.0)
        yield "v_scale forgotten", replace(right, v_scale=1.0)
        swapped = replace(right, k_scale=shape.v_scale, v_scale=shape.k_scale)
        yield "k_scale and v_scale swapped", swapped
        yield "k_scale for the values", replace(right, v_scale=shape.k_scale)
    yield "sees one key too few", replace(right, keys_beyond=-1)
    yield "sees one key too many", replace(right, keys_beyond=1)
    yield "causal mask ignored", replace(right, all_keys=True)
    yield "queries taken for the first positions", replace(right, from_top=True)
    yield "last, partly filled page ignored", replace(right, whole_pages=True)
    yield "first key ignored", replace(right, first_key=1)
    if shape.num_kv_heads > 1:
        yield (
            "wrong kv head for the query head",
            replace(right, kv_head=lambda head, _group, kv_heads: head % kv_heads),
        )
        yield (
            "the first kv head for every query head",
            replace(right, kv_head=lambda head, _group, _kv_heads: head * 0),
        )
    for shift in (1, -1):
        yield "another request's blocks", replace(right, row_shift=shift)
        yield "blocks of the neighbouring page", replace(right, column_shift=shift)
    yield "scale ignored", replace(right, scale=1.0)
    usual = prepared.shape.head_size**-0.5
    yield "1 / sqrt(head size) for the scale that was given", replace(right, scale=usual)
    yield "exponentials to base 2", replace(right, scale=prepared.scale * math.log(2))
