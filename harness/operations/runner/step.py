"""Cases of one step of model runner V2, and the tensors of its request slots.

All functions of section 13 that prepare or finish a step take their arguments from the same
step; a case of one of them is a step in numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from hypothesis import strategies as st
from msgspec import Meta

from attnproof.harness.cases.batches.request_rows import pattern_of, request_rows
from attnproof.harness.cases.magnitudes import TILES, around
from attnproof.harness.model.call import Facts
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.operations.shared.params import Few, Params, Tokens, size_problem

_MOST_TOKENS = 2**20
"""Most tokens of all slots' histories in a case."""
_WIDEST = 2**31 - 1
"""Number of token ids where no vocabulary limits them."""


class _Row(Params):
    slot: Annotated[int, Meta(ge=-1, le=4095)]
    """Request slot, -1 for a dummy row."""
    computed: Tokens
    query: Tokens
    prefill: Tokens
    """Tokens of the prompt."""
    logits: Few
    sampled: Few


class StepParams(Params):
    """Parameters of a step."""

    rows: Annotated[list[_Row], Meta(max_length=4096)]
    """Row of each request: its slot, and tokens by kind."""
    slots: Annotated[int, Meta(ge=1, le=4096)]
    """Request slots."""
    drafts: Few
    """Most draft tokens of a request."""
    new: Annotated[int, Meta(ge=0, le=1)]
    """New tokens that a row samples beside accepted drafts."""
    lookahead: Few
    """Rows of `next_prefill_tokens`, which has an entry for each slot."""
    vocabulary: Annotated[int, Meta(ge=1, le=2**18)]
    """Token ids that are counted."""
    counted: bool
    """True if `post_update` counts the token ids."""
    offsets: bool
    """True if `post_update` gets offsets."""
    spare: Annotated[int, Meta(ge=0, le=4096)]
    """Entries behind the live ones of each buffer."""
    wide: bool
    """True if `idx_mapping` is int64."""
    narrow: bool
    """True if sampled and draft tokens are int32."""


@dataclass(frozen=True, kw_only=True)
class StepFacts(Facts):
    """A step in numbers, one entry a row; dummy rows have no computed tokens."""

    slots: np.ndarray
    computed: np.ndarray
    query: np.ndarray
    prefill: np.ndarray
    logits: np.ndarray
    sampled: np.ndarray
    params: dict[str, Any]
    before: dict[str, np.ndarray]
    """Values of the tensors before the call."""

    @property
    def live(self) -> np.ndarray:
        """(R,) bool, True for rows with a request."""
        return self.slots >= 0

    @property
    def rows(self) -> np.ndarray:
        """(T,) row of each token."""
        rows: np.ndarray = np.repeat(np.arange(len(self.query)), self.query)
        return rows

    @property
    def places(self) -> np.ndarray:
        """(T,) place of each token in its row's query."""
        starts = np.cumsum(self.query) - self.query
        places: np.ndarray = np.arange(len(self.rows)) - starts[self.rows]
        return places


def problem(case: Case) -> str:
    """Return why the step cannot be run, "" if it can."""
    params = case.params
    rows, slots = params["rows"], params["slots"]
    live = [row["slot"] for row in rows if row["slot"] >= 0]
    if len(set(live)) != len(live) or max(live, default=0) >= slots:
        return "rows: two rows have one slot, or a slot does not exist"
    for row in rows:
        most = min(row["query"], params["drafts"] + params["new"])
        if row["logits"] > most:
            return f"logits: {row['logits']} in a row, at most {most}"
        past = row["computed"] + row["query"] >= row["prefill"]
        if row["sampled"] > (row["logits"] if past else params["drafts"] + 1):
            return f"sampled: {row['sampled']}, more than the row can sample"
    tokens = sum(row["query"] for row in rows) + _columns(params) * slots
    if tokens > _MOST_TOKENS:
        return f"rows: {tokens} tokens, at most {_MOST_TOKENS} are laid out"
    return size_problem("vocabulary", params["vocabulary"] * slots)


def unreal(case: Case, *, dummies: bool = False) -> str:
    """Return why no engine makes the step, "" if one may; `dummies`: dummy rows occur."""
    rows = case.params["rows"]
    if not dummies and any(row["slot"] < 0 for row in rows):
        return "an engine calls this function for rows with a request"
    if case.params["new"] and any(row["logits"] == 0 for row in rows):
        return "each row of an engine's step has logits"
    if any(row["query"] == 0 for row in rows):
        return "each row of an engine's step has tokens"
    return ""


def step_case(operation: str, rows: Sequence[tuple[int, ...]], **params: Any) -> Case:
    """Return a case; a row is (slot, computed, query, prefill, logits, sampled)."""
    names = ("slot", "computed", "query", "prefill", "logits", "sampled")
    base_params: dict[str, Any] = {
        "rows": [dict(zip(names, row, strict=True)) for row in rows],
        "slots": max([0, *(row[0] for row in rows)]) + 1,
        "drafts": max([1, *(row[4] for row in rows)]),
    }
    base_params |= {"new": 1, "lookahead": 1, "vocabulary": 16, "counted": True, "offsets": True}
    base_params |= {"spare": 2, "wide": False, "narrow": False}
    return Case(operation, None, base_params | params)


_RARELY = st.integers(0, 3).map(lambda number: number == 3)
_SOME = st.sampled_from((1, 2, 5, 17)) | st.integers(1, 40)
_KIND = st.sampled_from(("decode", "verify", "chunk", "last chunk", "across", "idle"))


@st.composite
def _row(draw: st.DrawFn, drafts: int, new: int) -> tuple[int, ...]:
    """Draw (computed, query, prefill, logits, sampled) of a row."""
    kind, computed, prompt = draw(_KIND), draw(_SOME), draw(_SOME)
    verified = draw(st.integers(1 - new, drafts))
    if kind == "decode" and new:
        return (computed, 1, min(prompt, computed), 1, 1)
    if kind in ("decode", "verify"):
        query = verified + new
        return (computed, query, min(prompt, computed), query, draw(st.integers(0, query)))
    if kind == "chunk":
        return (computed - 1, prompt, computed + prompt + draw(_SOME), new, draw(st.integers(0, 1)))
    if kind == "last chunk":
        return (computed - 1, prompt, computed - 1 + prompt, new, new)
    if kind == "across":
        logits = verified + new
        query = max(logits, prompt)
        return (computed, query, computed + query - verified, logits, draw(st.integers(0, logits)))
    return (computed, 0, computed, 0, 0)


@st.composite
def step_cases(draw: st.DrawFn, operation: str) -> Case:
    """Draw a step of up to five rows."""
    drafts, new = draw(st.integers(1, 4)), 1 - draw(_RARELY)
    drawn_rows = draw(st.lists(_row(drafts, new), max_size=5))
    slots = draw(st.sampled_from((0, 1, 2, len(drawn_rows) + 1))) + len(drawn_rows)
    taken: list[int] = request_rows(len(drawn_rows), slots, draw(st.integers(0, 7))).tolist()
    dummy = draw(st.integers(0, 20))
    rows = [
        (-1 if r == dummy else slot, *row)
        for r, (slot, row) in enumerate(zip(taken, drawn_rows, strict=True))
    ]
    return step_case(
        operation,
        rows,
        slots=max(1, slots),
        drafts=drafts,
        new=new,
        lookahead=draw(st.integers(0, 3)),
        counted=not draw(_RARELY),
        offsets=not draw(_RARELY),
        spare=draw(st.integers(0, 3)),
        wide=draw(_RARELY),
        narrow=draw(_RARELY),
    )


def step_boundaries(operation: str) -> Iterator[tuple[str, Case]]:
    """Yield the named steps of a function."""
    mixed = [(2, 7, 1, 4, 1, 1), (0, 3, 4, 9, 1, 1), (3, 0, 5, 5, 1, 1), (1, 8, 3, 4, 3, 2)]
    yield "mixed step (K40)", step_case(operation, mixed)
    yield "int64 rows, int32 tokens", step_case(operation, mixed, wide=True, narrow=True)
    yield "no rows", step_case(operation, [])
    yield "rows without tokens", step_case(operation, [(1, 4, 0, 4, 0, 0), (0, 0, 0, 9, 0, 0)])
    yield "dummy rows", step_case(operation, [(-1, 0, 3, 0, 1, 1), *mixed[:2], (-1, 0, 1, 0, 1, 0)])
    yield "all drafts rejected", step_case(operation, [(1, 8, 4, 4, 4, 1), (0, 8, 4, 4, 4, 4)])
    chunks = [(0, 4, 3, 20, 1, 0), (2, 6, 3, 20, 1, 0), (1, 4, 3, 20, 1, 0)]
    yield "equal chunks, the inner one at another depth", step_case(operation, chunks)
    yield "one token before the end of the prompt", step_case(operation, [(0, 2, 2, 5, 1, 1)])
    yield "at the end of the prompt", step_case(operation, [(0, 2, 3, 5, 1, 1)])
    yield "drafts behind the end of the prompt", step_case(operation, [(0, 2, 5, 5, 3, 2)])
    yield "last token of the prompt has a logit", step_case(operation, [(0, 2, 4, 5, 2, 1)])
    yield "no new token", step_case(operation, [(1, 6, 3, 4, 3, 2), (0, 5, 2, 4, 2, 0)], new=0)
    yield "nothing is counted", step_case(operation, mixed, counted=False, offsets=False)
    yield "no lookahead", step_case(operation, mixed, lookahead=0, spare=0)
    two = [(0, 8, 3, 4, 3, 2), (1, 8, 3, 4, 3, 3)]
    yield "ids of more than 17 bits", step_case(operation, two, vocabulary=201_088)
    yield "lookahead beyond the prompt", step_case(operation, mixed, lookahead=9)
    yield "many spare slots", step_case(operation, mixed, slots=300, spare=40)
    behind = [mixed[1], (2, 7, 1, 4, 1, 1), (-1, 0, 0, 0, 0, 0)]
    yield "dummy row behind, and no entry behind the tokens", step_case(operation, behind, spare=0)
    yield "more spare rows than a tile", step_case(operation, mixed, spare=2051)
    for tokens in (511, 512, 513):
        yield f"{tokens} tokens", step_case(operation, [(1, 4, tokens - 1, 600, 1, 1), mixed[1]])
    for rows in (255, 256, 257, 600, 1030):
        many = [(rows - 1 - r, 5 + r % 7, 1 + r % 3, 3, 1, r % 2) for r in range(rows)]
        yield f"{rows} rows", step_case(operation, many, drafts=1)
    for rows in (128, 260):
        chunks = [(r, 5, 1, 9, 0, 0) for r in range(rows)]
        yield f"{rows} rows without logits", step_case(operation, [*chunks, (rows, 8, 1, 4, 1, 1)])
    for logits in around(TILES, 17):
        verified = [(1, 9, logits + 2, 4, logits, logits // 3), mixed[1]]
        yield f"{logits} logits of a row", step_case(operation, verified)
    yield "long sequence", step_case(operation, [(0, 500_000, 2, 499_999, 2, 2)])


def step_of_batch(operation: str, batch: Batch) -> Iterator[Case]:
    """Yield the step of a batch: rows with computed tokens decode, others are in their prompt."""
    rows, count = [], min(batch.num_requests, 64)
    taken: list[int] = request_rows(count, count + 1, pattern_of(batch)).tolist()
    pairs = zip(batch.query_lens, batch.computed_lens, strict=True)
    for r, (query, computed) in enumerate(list(pairs)[:count]):
        decodes = computed > 0 and query <= 4
        logits = query if decodes else min(query, 1)
        prompt = computed if decodes else computed + query + r % 2
        rows.append((taken[r], computed, query, prompt, logits, min(logits, 1)))
    case = step_case(operation, rows, slots=count + 1, drafts=4, wide=batch.dtype == "int64")
    if not problem(case):
        yield case


def step_facts(case: Case, stale: int) -> StepFacts:
    """Return the step in numbers, with the tensors before the call."""
    rows = case.params["rows"]
    names = ("slot", "computed", "query", "prefill", "logits", "sampled")
    columns = {name: np.array([row[name] for row in rows], dtype=np.int64) for name in names}
    slots = columns.pop("slot")
    columns["computed"][slots < 0] = 0
    before = _tensors(case.params, slots, columns, stale)
    return StepFacts(
        slots=slots,
        computed=columns["computed"],
        query=columns["query"],
        prefill=columns["prefill"],
        logits=columns["logits"],
        sampled=columns["sampled"],
        params=case.params,
        before=before,
    )


def _columns(params: dict[str, Any]) -> int:
    """Return the tokens that each slot's history holds."""
    lengths = [_total(row) + row["sampled"] for row in params["rows"]]
    ends = [row["computed"] + row["query"] for row in params["rows"]]
    return int(max([1, *lengths, *ends])) + int(params["spare"])


def _total(row: dict[str, Any]) -> int:
    """Return the tokens of a request before the step's sampled ones."""
    return int(max(row["prefill"], row["computed"] + 1))


def _tensors(
    params: dict[str, Any], slots: np.ndarray, row: dict[str, np.ndarray], stale: int
) -> dict[str, np.ndarray]:
    """Return all tensors of the step; entries that no row has are stale."""
    spare, count = params["spare"], params["slots"]
    live = np.flatnonzero(slots >= 0)
    past = row["computed"] + row["query"] >= row["prefill"]
    rejected = np.where(past & (slots >= 0), row["logits"] - row["sampled"], 0)
    total = np.array([_total(entry) for entry in params["rows"]], dtype=np.int64)
    tokens = int(row["query"].sum()) + spare
    kind = np.int32 if params["narrow"] else np.int64
    vocabulary = params["vocabulary"] if params["counted"] else _WIDEST

    def by_slot(values: np.ndarray, dtype: Any = np.int32) -> np.ndarray:
        slot_values = np.full((count, *values.shape[1:]), stale, dtype=dtype)
        slot_values[slots[live]] = values[live]
        return slot_values

    def buffer(length: int, values: Any = (), dtype: Any = np.int32) -> np.ndarray:
        padded = np.full(length, stale, dtype=dtype)
        padded[: len(values)] = values
        return padded

    def ids(*shape: int, seed: int, below: int = _WIDEST) -> np.ndarray:
        """Return token ids up to the largest int32: a a b a c c d c and so on."""
        number = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
        different = number // 2 - (number % 4 == 3)
        tokens: np.ndarray = ((different + seed) * 2654435761 + 2**30) % below
        return tokens

    def offsets(lengths: np.ndarray) -> np.ndarray:
        return buffer(len(slots) + 1 + spare // 2, [0, *np.cumsum(lengths)])

    rows, columns, drafts = len(slots), _columns(params), params["drafts"]
    history = ids(rows, columns, seed=3)
    # Not what the buffers hold: a token that is left out must differ from one that is copied.
    history[np.arange(columns) >= total[:, None]] = stale - 1
    proposed = ids(rows, drafts, seed=5)
    proposed[np.arange(drafts) >= (row["logits"] - params["new"])[:, None]] = stale
    sampled = ids(rows, drafts + 1, seed=7, below=vocabulary)
    sampled[np.arange(drafts + 1) >= row["sampled"][:, None]] = stale
    advanced = 0 if params["offsets"] else row["query"]
    return {
        "idx_mapping": slots.astype(np.int64 if params["wide"] else np.int32),
        "query_start_loc": offsets(row["query"]),
        "cu_num_logits": offsets(row["logits"]),
        "num_computed_tokens": by_slot(row["computed"]),
        "advanced": by_slot(row["computed"] + advanced),
        "prefill_len": by_slot(row["prefill"]),
        "total_len": by_slot(total),
        "all_token_ids": by_slot(history),
        "last_sampled_tokens": by_slot(ids(rows, 1, seed=9), kind),
        "draft_tokens": by_slot(proposed, kind),
        "next_prefill_tokens": np.full((params["lookahead"], count), stale, dtype=np.int32),
        "output_bin_counts": by_slot(ids(rows, params["vocabulary"], seed=1, below=4)),
        "input_ids": buffer(tokens),
        "pos": buffer(tokens, dtype=np.int64),
        "seq_lens": buffer(rows + spare, row["computed"] + row["query"]),
        "unset seq_lens": buffer(rows + spare),
        "sampled_tokens": sampled.astype(kind),
        "num_sampled": buffer(rows + spare, row["sampled"]),
        "counted": np.where(past & (slots >= 0), row["sampled"], 0).astype(np.int32),
        "num_rejected": rejected.astype(np.int32),
    }
