"""Operation of SPEC.md section 14: the inputs of a drafter that drafts several tokens at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.cases.batches.tensors import batch_arrays
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.consumer.batch import int64_array
from attnproof.harness.model.call import Call, Facts, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.drafter.expanded_faults import FAULTS
from attnproof.harness.operations.shared.metadata import batch_of, token_positions
from attnproof.harness.operations.shared.params import Lengths, Params, Some, Tokens

NAME = "copy_and_expand_eagle_inputs"
_IDS, _POSITIONS = "out_input_ids", "out_positions"
_REJECTED, _MASKED = "out_is_rejected_token_mask", "out_is_masked_token_mask"
_NEW, _HIDDEN = "out_new_token_indices", "out_hidden_state_mapping"
_OUTPUTS = (_IDS, _POSITIONS, _REJECTED, _MASKED, _NEW, _HIDDEN)
_MASKS = (_REJECTED, _MASKED)
_TARGET, _SAMPLED, _PARALLEL, _PADDING = 1000, 5_000_000, 7_000_000, 3
"""First token ids of the target and of the sampled tokens; the two fixed ids."""


class _Params(Params):
    rejected: Lengths
    """Rejected tokens at the end of each query."""
    slots: Some
    """New tokens of each request."""
    shift: bool
    spare: Tokens
    """Entries of the outputs behind those that are written."""
    wide: bool = False
    """True if token ids are int64 and positions int32, unlike an engine's."""


@dataclass(frozen=True, kw_only=True)
class _InputFacts(Facts):
    offsets: np.ndarray
    """(R + 1,) first target token of each row, then their number."""
    rejected: np.ndarray
    """(R,) rejected tokens of each row."""
    slots: int
    shift: int

    @property
    def starts(self) -> np.ndarray:
        """(R + 1,) first output of each row, then the number of outputs."""
        starts: np.ndarray = self.offsets + np.arange(len(self.offsets)) * (self.slots - self.shift)
        return starts

    @property
    def kept(self) -> np.ndarray:
        """(R,) target tokens that each row copies."""
        kept: np.ndarray = np.diff(self.offsets) - self.rejected - self.shift
        return kept


def _problem(case: Case) -> str:
    batch, rejected = batch_of(case), case.params["rejected"]
    if batch.padded_requests:
        return "batch.padded_requests: each row has a token"
    if len(rejected) != batch.num_requests:
        return f"rejected: {len(rejected)} entries for {batch.num_requests} requests"
    if any(n >= q for n, q in zip(rejected, batch.query_lens, strict=True)):
        return "rejected: no token of a request is kept"
    return ""


def _case(
    batch: Batch, rejected: list[int], slots: int, shift: bool, spare: int = 0, **others: Any
) -> Case:
    params = {"rejected": rejected, "slots": slots, "shift": shift, "spare": spare}
    return Case(NAME, batch, params | others)


def _live(batch: Batch) -> Batch:
    """Return the requests of the batch that have a token, in a plain layout."""
    rows = [r for r, query_len in enumerate(batch.query_lens) if query_len]
    return Batch(
        block_size=batch.block_size,
        query_lens=tuple(batch.query_lens[r] for r in rows),
        computed_lens=tuple(batch.computed_lens[r] for r in rows),
        blocks=tuple(batch.blocks[r] for r in rows),
        dtype=batch.dtype,
        strided=batch.strided,
    )


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    batch = _live(draw(batches()))
    return _case(
        batch,
        [draw(st.integers(0, min(query_len - 1, 4))) for query_len in batch.query_lens],
        draw(st.integers(1, 4)),
        draw(st.booleans()),
        draw(st.integers(0, 2)),
        wide=draw(st.sampled_from((False, False, True))),
    )


def _shapes() -> Iterator[tuple[str, Batch, list[int], int]]:
    yield "SPEC example", make_batch([3, 1], [5, 0], 4), [1, 0], 2
    mixed = make_batch([4, 1, 9, 3, 2], [7, 4, 0, 6, 3], 4)
    yield "none rejected, one new token", mixed, [0] * 5, 1
    yield "none rejected, four new tokens", mixed, [0] * 5, 4
    yield "all but the first rejected", mixed, [3, 0, 8, 2, 1], 3
    yield "decodes", make_batch([1] * 4, [3, 0, 9, 5], 4), [0] * 4, 2
    yield "no requests", make_batch([], [], 4), [], 2
    yield "strided int64", make_batch([4, 3], [1, 6], 4, strided=True, dtype="int64"), [2, 1], 2
    for tokens in (255, 256, 257):
        yield f"{tokens} tokens at a kernel tile", make_batch([tokens, 2], [3, 4], 16), [5, 1], 1
    rows = 600
    many = make_batch([1 + row % 4 for row in range(rows)], [row % 7 for row in range(rows)], 4)
    yield "many requests over several tiles", many, [row % 4 // 2 for row in range(rows)], 3
    yield "a long prompt", make_batch([3000, 2], [0, 8], 16), [0, 1], 2
    yield "position beyond 2**20", make_batch([3], [2**20 + 255], 256), [1], 2


def _boundaries() -> Iterator[tuple[str, Case]]:
    for name, batch, rejected, slots in _shapes():
        yield f"{name}, shifted", _case(batch, rejected, slots, True, 2)
        yield f"{name}, not shifted", _case(batch, rejected, slots, False)
    wide = make_batch([3, 2], [4, 0], 4)
    yield "int64 tokens, int32 positions", _case(wide, [1, 0], 2, True, wide=True)


def _steps(batch: Batch) -> Iterator[Case]:
    live = _live(batch)
    rejected = [row % min(q, 4) for row, q in enumerate(live.query_lens)]
    yield _case(live, rejected, 1 + live.num_requests % 4, bool(live.num_tokens % 2))


def _timed(batch: Batch) -> Iterator[Case]:
    if batch.num_requests == 64:
        live = _live(batch)
        yield _case(live, [row % min(q, 4) for row, q in enumerate(live.query_lens)], 4, True)


def _prepare(case: Case, pattern: int, device: str) -> Call:
    batch, params, stale = batch_of(case), case.params, STALE_PATTERNS[pattern]
    made, step = batch_arrays(batch, pattern), (2 if batch.strided else 1,)
    rejected = np.array(params["rejected"], dtype=np.int64)
    slots, shift, spare = params["slots"], params["shift"], params["spare"]
    facts = _InputFacts(
        offsets=made.query_start_loc.astype(np.int64),
        rejected=rejected,
        slots=slots,
        shift=int(shift),
    )
    tokens, rows = batch.num_tokens, batch.num_requests
    target, sampled = _TARGET + np.arange(tokens), _SAMPLED + np.arange(rows)
    if tokens % 2:  # marks are ids of the vocabulary, which a request may have too
        target[1::5], target[3::5], sampled[1::3] = _PADDING, _PARALLEL, _PARALLEL
    ids, places = (np.int64, np.int32) if params.get("wide") else (np.int32, np.int64)
    outputs = int(facts.starts[-1]) + spare
    arrays = {
        "target_token_ids": target.astype(ids),
        "target_positions": token_positions(made.query_start_loc, made.num_computed_tokens),
        "next_token_ids": sampled.astype(np.int32),
        _IDS: np.full(outputs, stale, ids),
        _POSITIONS: np.full(outputs, stale, places),
        # The arena's words are integers: the masks are views of bytes.
        _REJECTED: np.full(outputs, stale & 1, np.uint8),
        _MASKED: np.full(outputs, stale & 1, np.uint8),
        _NEW: np.full(rows * slots + spare, stale, np.int32),
        _HIDDEN: np.full(tokens + spare, stale, np.int32),
        "query_start_loc": made.query_start_loc,
        "query_end_loc": (made.query_start_loc[1:] - 1 - rejected).astype(np.int32),
    }
    given = arrays["target_positions"]
    if pattern:  # a drafter has set the positions beyond the model's last one to 0
        behind = np.arange(tokens) > np.repeat(made.query_start_loc[:-1], batch.query_lens)
        given = np.where(behind & (given == given.max(initial=0)), 0, given)
    arrays["target_positions"] = given.astype(places)
    arena = Arena([Piece(n, values, False, step) for n, values in arrays.items()], stale, device)
    tensors = dict(arena.tensors)
    for name in _MASKS:
        tensors[name] = tensors[name].view(torch.bool)
    return Call(
        {name: tensors[name] for name in arrays}
        | {
            "padding_token_id": _PADDING,
            "parallel_drafting_token_id": _PARALLEL,
            "total_input_tokens": tokens,
            "num_padding_slots_per_request": slots,
            "shift_input_ids": shift,
        },
        arena=arena,
        written=frozenset(_OUTPUTS),
        facts=facts,
    )


def _outputs(call: Call, result: Any) -> Outputs:
    return {"result": result} | {name: call[name] for name in _OUTPUTS}


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check each row's outputs against each other and against the target's tokens."""
    facts, slots = call.facts, call.facts.slots
    starts, ids, positions = facts.starts, *(int64_array(outputs[n]) for n in (_IDS, _POSITIONS))
    rejected, masked = (outputs[name].cpu().numpy() for name in _MASKS)
    sampled = int64_array(call["next_token_ids"])
    new, first = int64_array(outputs[_NEW]), int64_array(call["target_positions"])
    for row, (begin, end) in enumerate(pairwise(starts.tolist())):
        live = begin + int(facts.kept[row]) + slots
        if rejected[begin:live].any() or not rejected[live:end].all():
            yield Violation(_REJECTED, "does not mark the row's rejected tokens")
        if masked[begin:end].sum() != slots - 1:
            yield Violation(_MASKED, "does not mark the row's parallel drafts")
        expected = first[facts.offsets[row]] + np.arange(live - begin)
        if not np.array_equal(positions[begin:live], expected):
            yield Violation(_POSITIONS, "does not rise from the row's first position")
        if positions[live:end].any():
            yield Violation(_POSITIONS, "is not 0 at a rejected token")
        if (ids[live:end] != _PADDING).any():
            yield Violation(_IDS, "is not the padding id at a rejected token")
        own = new[row * slots : (row + 1) * slots]
        if not np.array_equal(own, np.arange(live - slots, live)):
            yield Violation(_NEW, "are not the last tokens before the rejected ones")
        elif ids[own[0]] != sampled[row] or (ids[own[1:]] != _PARALLEL).any():
            yield Violation(_IDS, "has other new tokens than the sampled one and drafts")
    if facts.shift:
        yield from _hidden_violations(call, outputs)


def _hidden_violations(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check that hidden states of kept tokens go to the output at their position."""
    facts, tokens = call.facts, call["total_input_tokens"]
    mapping = int64_array(outputs[_HIDDEN])[:tokens]
    if len(np.unique(mapping)) != tokens:
        yield Violation(_HIDDEN, "sends two hidden states to one token")
        return
    rows = np.repeat(np.arange(len(facts.rejected)), np.diff(facts.offsets))
    kept = np.arange(tokens) < (facts.offsets[1:] - facts.rejected)[rows]
    given, made = int64_array(call["target_positions"]), int64_array(outputs[_POSITIONS])
    kept &= given > 0  # those beyond the model's last position are 0
    if (made[mapping[kept]] != given[kept]).any():
        yield Violation(_HIDDEN, "sends a hidden state to another position")


def _diagnose(call: Call, place: Place, expected: Any, got: Any) -> str:
    facts: _InputFacts = call.facts
    if not isinstance(got, torch.Tensor) or got.shape != expected.shape or not len(got):
        return ""
    wrong = (expected != got).cpu().numpy()
    if place.field not in (_IDS, _POSITIONS, *_MASKS):
        return "indices do not follow the layout"
    starts = facts.starts
    if wrong[starts[-1] :].any():
        return "writes behind the last request"
    index = int(np.argmax(wrong))
    row = int(np.searchsorted(starts, index, side="right")) - 1
    j, kept = index - int(starts[row]), int(facts.kept[row])
    part = "copied token" if j < kept else "sampled token" if j == kept else "parallel draft"
    return f"wrong {part if j < kept + facts.slots else 'rejected token'}"


copy_and_expand_eagle_inputs = Operation(
    name=NAME,
    section="14",
    summary="tokens, positions and masks of a drafter that drafts in parallel",
    inputs=Inputs(
        params=_Params,
        problem=_problem,
        unreal=lambda case: (
            "token ids of an engine are int32, positions int64" if case.params.get("wide") else ""
        ),
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_steps,
        faults=FAULTS,
    ),
    call=FunctionCall(prepare=_prepare, outputs=_outputs),
    contract=Contract(invariants=_invariants, diagnose=_diagnose, may_alias=frozenset(_OUTPUTS)),
    bench=Bench(cases=_timed),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (copy_and_expand_eagle_inputs,)
