"""Cases of the builders of state-space metadata: rows of decodes, drafts and prefills."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from typing import Annotated, Any, Literal

import numpy as np
from hypothesis import strategies as st
from msgspec import Meta

from attnproof import reference
from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.cases.batches.tensors import batch_arrays, lay_out
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Piece
from attnproof.harness.consumer.states import Requests
from attnproof.harness.model.call import Call
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.operations.shared.metadata import BatchFacts, batch_of
from attnproof.harness.operations.shared.params import InTurn, Params, Some, Tokens
from attnproof.reference import StateSpaceConfig

Row = tuple[int, int, bool]
"""Query and computed tokens, and True in the prompt."""
_MOST_ENTRIES = 2**22


class StateParams(Params, kw_only=True):
    """Parameters beside the batch."""

    speculative: Annotated[int, Meta(ge=0, le=8)]
    """Drafts of a request in one step, at most."""
    drafting: Annotated[list[bool], Meta(min_length=1, max_length=2**16)]
    """True of a row that has drafts, if it may; in turn."""
    accepted: InTurn
    """Tokens of the step before that are kept; in turn."""
    counts: bool
    """True if accepted tokens and drafts are given."""
    mode: Literal["align", "none"]
    """Mode of the cache: states at ends of blocks, or the last one alone."""
    layer: Literal["mamba1", "mamba2", "short_conv"]
    """Kind of the layer."""
    chunk_size: Some
    """Tokens of a chunk of a prefill."""
    checkpoint_alignment: Tokens = 0
    """Tokens that divide the place of a state which a prefill exports; 0 without exports."""
    hash_block_size: Some = 4
    """Tokens of a hashed block, at whose ends requests resume."""
    graphs: bool
    """True if decodes run in full graphs."""
    max_num_seqs: Some
    """Rows of a batch, at most."""


_USUAL: dict[str, Any] = {
    "speculative": 0,
    "drafting": [True],
    "accepted": [1],
    "counts": True,
    "mode": "align",
    "layer": "mamba2",
    "chunk_size": 4,
    "checkpoint_alignment": 0,
    "hash_block_size": 4,
    "graphs": False,
    "max_num_seqs": 64,
}


@dataclass(frozen=True, kw_only=True)
class StateFacts(BatchFacts):
    """Facts of a call of a builder."""

    requests: Requests
    counted: bool
    """True if decodes know the accepted tokens of the step before."""


def state_case(name: str, rows: list[Row], block_size: int, **params: Any) -> Case:
    """Return a case of these rows, in the order of an engine; other fields go to the batch."""
    if not speculates(name):
        params["speculative"] = 0
    fields = {key: params.pop(key) for key in ("padded_requests", "padded_tokens") if key in params}
    ordered = sorted(rows, key=partial(_region, 1 + params.get("speculative", 0)))
    prompts = tuple(computed + in_prompt for _, computed, in_prompt in ordered)
    queries, computed = [row[0] for row in ordered], [row[1] for row in ordered]
    batch = make_batch(queries, computed, block_size, later=True, prompt_lens=prompts, **fields)
    return Case(name, batch, _USUAL | params)


def speculates(name: str) -> bool:
    """True if a builder knows speculative rows."""
    return "num_accepted_tokens" in signature(getattr(reference, name)).parameters


def _region(most: int, row: Row) -> int:
    """Return the place of a row's kind in the order of an engine."""
    query, computed, in_prompt = row
    return 0 if not in_prompt else 1 if computed and query <= most else 2 if computed else 3


def unreal(case: Case) -> str:
    """Return why no engine makes the case, "" if one may."""
    batch, most = batch_of(case), 1 + case.params["speculative"]
    lengths = zip(batch.query_lens, batch.computed_lens, batch.prompt_lens or (), strict=True)
    rows = [(query, computed, computed < prompt) for query, computed, prompt in lengths]
    if batch.num_requests + batch.padded_requests > case.params["max_num_seqs"]:
        return "an engine has at most max_num_seqs rows"
    regions = [_region(most, row) for row in rows]
    if regions != sorted(regions):
        return "an engine puts decodes first, and behind them the ends of prompts"
    drafts = most if case.params["counts"] else 1
    if any(not in_prompt and (not c or q > drafts) for q, c, in_prompt in rows):
        return "a decode has its state, and one token beside its drafts, which are counted"
    return "" if batch.num_requests else "an engine builds no metadata without a request"


def problem(case: Case) -> str:
    """Return why a case cannot be run, "" if it can."""
    batch = batch_of(case)
    if not batch.later or batch.prompt_lens is None:
        return "batch.prompt_lens: needed, with batch.later"
    if case.params["speculative"] and not speculates(case.operation):
        return "speculative: 0, since the builder takes no drafts"
    if batch.dtype != "int32" or batch.strided or not batch.num_requests:
        return "batch: int32, without gaps, of at least one request"
    if 0 in batch.query_lens:  # they are padding, which stands behind all others
        return "batch.query_lens: at least 1; padded_requests has rows without a token"
    if (0, 0) in zip(batch.computed_lens, batch.prompt_lens, strict=False):
        return "batch.prompt_lens: at least 1 of a request without computed tokens"
    if _width(batch, case.params) * (batch.num_requests + 1) > _MOST_ENTRIES:
        return "batch: the table has too many entries"
    return ""


def _width(batch: Batch, params: dict[str, Any]) -> int:
    lengths = [q + c for q, c in zip(batch.query_lens, batch.computed_lens, strict=True)]
    first = max(0, max(lengths, default=0) - 1) // batch.block_size
    return (first if params["mode"] == "align" else 0) + 2 + int(params["speculative"])


@st.composite
def _rows(draw: st.DrawFn, most: int) -> Row:
    query, computed = draw(st.integers(1, most)), draw(st.integers(1, 40))
    long = draw(st.integers(1, 3) | st.integers(1, 140))
    kinds = ((query, computed, False), (query, computed, True), (long, computed, True))
    return draw(st.sampled_from((*kinds, (long, 0, True))))


@st.composite
def state_cases(draw: st.DrawFn, name: str) -> Case:
    """Draw a case."""
    speculative, counts = draw(st.sampled_from((0, 1, 2, 3))), draw(st.integers(0, 3)) < 3
    most = 1 + speculative * counts
    only = draw(st.sampled_from(("any", "any", "decodes")))
    rows = draw(st.lists(_rows(most), min_size=1, max_size=7))
    if only == "decodes":
        rows = [(min(q, most), max(1, c), False) for q, c, _ in rows]
    return state_case(
        name,
        rows,
        draw(st.sampled_from((4, 1, 2, 16))),
        speculative=speculative,
        drafting=draw(st.lists(st.booleans(), min_size=1, max_size=4)),
        accepted=draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)),
        counts=counts,
        mode=draw(st.sampled_from(("align", "align", "none"))),
        layer=draw(st.sampled_from(("mamba2", "mamba2", "mamba1", "short_conv"))),
        chunk_size=draw(st.sampled_from((4, 1, 3, 8, 64))),
        checkpoint_alignment=draw(st.sampled_from((0, 1, 2))),
        hash_block_size=draw(st.sampled_from((4, 2, 8))),
        graphs=draw(st.booleans()),
        max_num_seqs=draw(st.sampled_from((64, 2))),
        padded_requests=draw(st.sampled_from((0, 0, 1, 3))),
        padded_tokens=draw(st.sampled_from((0, 0, 2))),
    )


def state_steps(name: str, batch: Batch) -> Iterator[Case]:
    """Yield the case of a batch of an engine, whose prompts it may not say."""
    prompts = batch.prompt_lens or [None] * batch.num_requests
    rows: list[Row] = [
        (query, computed, query > 1 or not computed if prompt is None else computed < prompt)
        for query, computed, prompt in zip(
            batch.query_lens, batch.computed_lens, prompts, strict=True
        )
        if query
    ]
    padding = {"padded_requests": batch.padded_requests, "padded_tokens": batch.padded_tokens}
    case = state_case(name, rows, batch.block_size, graphs=True, chunk_size=64, **padding)
    if rows and not problem(case):
        yield case


def prepare_states(case: Case, pattern: int, device: str) -> Call:
    """Return the call of a case; only the columns of a row's states are live."""
    batch, params = batch_of(case), _USUAL | case.params  # a saved case may lack a later one
    arrays, stale = batch_arrays(batch, pattern), STALE_PATTERNS[pattern]
    rows, real, count = arrays.num_reqs, batch.num_requests, 1 + params["speculative"]
    table = np.full((rows, _width(batch, params)), stale, np.int32)
    aligned = params["mode"] == "align"
    first = np.maximum(arrays.seq_lens - 1, 0) // batch.block_size * aligned
    # No two rows share a state, and patterns have other ids.
    states = 1 + pattern + np.arange(rows * count, dtype=np.int32)[::-1].reshape(rows, count)
    states[real:] = table[real:] = 0
    np.put_along_axis(table, first[:, None] + np.arange(count), states, axis=1)
    queries = np.diff(arrays.query_start_loc)
    computed = arrays.seq_lens - queries
    may = (queries <= count) & (computed > 0) & (queries > 0)
    accepted = np.clip(np.resize(params["accepted"], rows), 1, count).astype(np.int32)
    accepted[real:] = 1
    drafting = may & np.resize(params["drafting"], rows)
    drafts = np.where(drafting, queries - 1, -1).astype(np.int32)
    more = [
        Piece("state_table", table, False, (table.shape[1], 1)),
        Piece("num_accepted_tokens", accepted, False, (1,)),
        Piece("num_decode_draft_tokens_cpu", drafts, True, (1,)),
    ]
    metadata, arena = lay_out(batch, pattern, device, more)
    metadata = replace(metadata, block_table_tensor=arena.tensors["state_table"])
    config = StateSpaceConfig(
        layer=params["layer"],
        block_size=batch.block_size,
        mamba_cache_mode=params["mode"],
        num_speculative_tokens=params["speculative"],
        chunk_size=params["chunk_size"],
        checkpoint_alignment=params["checkpoint_alignment"] or None,
        hash_block_size=params["hash_block_size"],
        cache_hit_alignment_tokens=params["hash_block_size"],
        has_full_graphs=params["graphs"],
        max_num_seqs=params["max_num_seqs"],
    )
    in_prompt = np.zeros(rows, bool)
    in_prompt[:real] = np.asarray(batch.prompt_lens) > computed[:real]
    has_counts = params["counts"] and params["speculative"] > 0 and speculates(case.operation)
    known = drafting & has_counts
    # Kernels of mamba1 have no drafts.
    counted = has_counts and (case.operation, params["layer"]) != ("mamba_build", "mamba1")
    requests = Requests(
        arrays.query_start_loc, states, computed > 0, accepted, known, in_prompt & ~known
    )
    counts = {
        name: arena.tensors[name] if has_counts else None
        for name in ("num_accepted_tokens", "num_decode_draft_tokens_cpu")
        if speculates(case.operation)
    }
    return Call(
        {"common_attn_metadata": metadata, "config": config} | counts,
        arena=arena,
        facts=StateFacts(batch=batch, metadata=metadata, requests=requests, counted=counted),
    )
