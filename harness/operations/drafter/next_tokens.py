"""Operation of SPEC.md section 14: the token that each request's drafter continues from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
import torch
from hypothesis import strategies as st
from msgspec import Meta

from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.consumer.batch import int64_array
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.faults import wrong_type, wrong_value
from attnproof.harness.operations.shared.params import Params, Positive, Tokens

NAME = "prepare_next_token_ids_padded"
NEXT, COUNT = "next_token_ids", "valid_sampled_tokens_count"
_BACKUP = 3_000_000
"""Backup token of the first request; tokens of cases are smaller."""
_VOCABULARY, _LARGE_VOCABULARY = 128_000, 262_144
_Token = Annotated[int, Meta(ge=-1, le=_BACKUP - 1)]
_Sampled = Annotated[list[_Token], Meta(max_length=1024)]


class _Params(Params):
    sampled: Annotated[list[_Sampled], Meta(max_length=2**12)]
    discarded: Annotated[list[bool], Meta(max_length=2**12)]
    vocab_size: Positive
    spare: Tokens
    """Stale entries of mask and backup tokens behind the requests."""
    wide: bool
    """True if sampled tokens are int64."""
    strided: bool


def _problem(case: Case) -> str:
    sampled, discarded = case.params["sampled"], case.params["discarded"]
    if len({len(row) for row in sampled}) > 1:
        return "sampled: rows of several lengths"
    if len(discarded) != len(sampled):
        return f"discarded: {len(discarded)} entries for {len(sampled)} rows"
    return ""


def _unreal(case: Case) -> str:
    if any(-1 in row[: len(row) - row[::-1].count(-1)] for row in case.params["sampled"]):
        return "an engine accepts the first of a row's tokens"
    if not case.params["sampled"] or not case.params["sampled"][0]:
        return "an engine samples a token for each request of a step"
    return "" if not (case.params["wide"] or case.params["strided"]) else "an engine's are int32"


def _case(sampled: list[list[int]], discarded: list[bool] | None = None, **changes: Any) -> Case:
    params = {
        "sampled": sampled,
        "discarded": discarded or [False] * len(sampled),
        "vocab_size": _VOCABULARY,
        "spare": 0,
        "wide": False,
        "strided": False,
    }
    return Case(NAME, None, params | changes)


def _accepted(accepted: list[int], width: int) -> list[list[int]]:
    """Return the sampled tokens of requests that accept some of `width` tokens."""
    return [
        [100 * row + i if i < n else -1 for i in range(width)] for row, n in enumerate(accepted)
    ]


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    width, rows = draw(st.integers(1, 6)), draw(st.integers(0, 5))
    vocab_size = draw(st.sampled_from((_VOCABULARY, 10, 1, _LARGE_VOCABULARY, _BACKUP - 2)))
    edges = st.sampled_from((-1, 0, vocab_size - 1, vocab_size, vocab_size + 1))
    tokens = draw(
        st.lists(
            st.lists(st.integers(-1, 20) | edges, min_size=width, max_size=width),
            min_size=rows,
            max_size=rows,
        )
    )
    return _case(
        tokens,
        draw(st.lists(st.booleans(), min_size=rows, max_size=rows)),
        vocab_size=vocab_size,
        spare=draw(st.integers(0, 2)),
        wide=draw(st.sampled_from((False, False, True))),
        strided=draw(st.sampled_from((False, False, True))),
    )


def _boundaries() -> Iterator[tuple[str, Case]]:
    yield (
        "SPEC example",
        _case([[5, 7, -1], [-1, -1, -1], [4, 9, 2]], [False, False, True], vocab_size=8),
    )
    yield (
        "none to all of three drafts accepted (K39)",
        _case(_accepted([0, 1, 2, 3, 4], 4), spare=2),
    )
    yield "one token each, no drafts (K36)", _case(_accepted([1, 0, 1], 1))
    yield "discarded rows with tokens", _case(_accepted([3, 0, 1], 3), [True, True, False], spare=3)
    yield "tokens at the end of the vocabulary", _case([[9, 10, 11], [10, 10, 10]], vocab_size=10)
    for size in (_LARGE_VOCABULARY, _BACKUP):
        tokens = [[size - 1, size // 2 + 1, -1], [2**16, size - 2, size - 1], [5, -1, -1]]
        yield f"vocabulary of {size} tokens", _case(tokens, vocab_size=size)
    yield "token 0", _case([[0, -1], [0, 0]])
    yield "valid tokens behind rejected ones", _case([[-1, 5, -1, 6], [3, -1, -1, -1]])
    yield "no tokens", _case([[], [], []])
    yield "no requests", _case([], spare=2)
    for width in (7, 8, 9, 17):
        yield f"{width} tokens at a kernel tile", _case(_accepted([width, width - 1, 1, 0], width))
    for rows in (31, 32, 33, 200, 1030):
        yield f"{rows} requests at a kernel tile", _case(_accepted([r % 4 for r in range(rows)], 3))
    yield "int64 tokens", _case(_accepted([2, 0, 3], 3), wide=True)
    yield "strided tensors", _case(_accepted([2, 0, 3], 3), [False, False, True], strided=True)


def _steps(batch: Batch) -> Iterator[Case]:
    rows = range(batch.num_requests)
    discarded = [batch.query_lens[r] > 4 for r in rows]
    yield _case(_accepted([1 + r % 4 for r in rows], 4), discarded)


def _prepare(case: Case, pattern: int, device: str) -> Call:
    params, stale = case.params, STALE_PATTERNS[pattern]
    rows, spare, step = len(params["sampled"]), params["spare"], 2 if params["strided"] else 1
    width = len(params["sampled"][0]) if rows else 2
    dtype = np.int64 if params["wide"] else np.int32
    sampled = np.array(params["sampled"], dtype=dtype).reshape(rows, width)
    # The arena's words are integers: the mask is a view of bytes.
    mask = np.array([*params["discarded"], *[stale & 1] * spare], dtype=np.uint8)
    backup = np.array([*range(_BACKUP, _BACKUP + rows), *[stale] * spare], dtype=np.int32)
    pieces = [
        Piece("sampled_token_ids", sampled, False, (step * width + 1, step)),
        Piece("discard_request_mask", mask, False, (step,)),
        Piece("backup_next_token_ids", backup, False, (step,)),
    ]
    arena = Arena(pieces, stale, device)
    return Call(
        {
            "sampled_token_ids": arena.tensors["sampled_token_ids"],
            "discard_request_mask": arena.tensors["discard_request_mask"].view(torch.bool),
            "backup_next_token_ids": arena.tensors["backup_next_token_ids"],
            "vocab_size": params["vocab_size"],
        },
        arena=arena,
    )


def _outputs(_call: Call, result: Any) -> Outputs:
    tokens, counts = result
    return {NEXT: tokens, COUNT: counts}


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    sampled = int64_array(call["sampled_token_ids"])
    rows = len(sampled)
    mask = call["discard_request_mask"].cpu().numpy()[:rows]
    backup = int64_array(call["backup_next_token_ids"])[:rows]
    tokens, counts = int64_array(outputs[NEXT]), int64_array(outputs[COUNT])
    valid = (sampled != -1) & (sampled < call["vocab_size"]) & ~mask[:, None]
    if not np.array_equal(valid.sum(1), counts):
        yield Violation(COUNT, "is not the number of valid tokens")
    if (tokens[counts == 0] != backup[counts == 0]).any():
        yield Violation(NEXT, "is not the backup token of a row without a valid one")
    if any(tokens[row] not in sampled[row] for row in np.flatnonzero(counts)):
        yield Violation(NEXT, "is no token of its row")


def _diagnose(call: Call, place: Place, expected: Any, got: Any) -> str:
    if not isinstance(got, torch.Tensor) or got.shape != expected.shape:
        return ""
    wrong = (expected != got).cpu()
    rows = len(expected)
    mask = call["discard_request_mask"].cpu()[:rows]
    if (mask | ~wrong).all():
        return "a discarded request is not left out"
    if place.field == NEXT:
        backup = call["backup_next_token_ids"].cpu()[:rows]
        if (expected.cpu()[wrong] == backup[wrong]).all():
            return "no backup token for a request without a valid one"
        return "another token than the last valid one"
    if (got < expected)[wrong].all():
        return "valid tokens not counted"
    return "tokens counted that are not valid" if (got > expected)[wrong].all() else ""


def _has_rows(case: Case) -> bool:
    return bool(case.params["sampled"])


def _tight(case: Case) -> bool:
    return _has_rows(case) and not case.params["spare"]


prepare_next_token_ids_padded = Operation(
    name=NAME,
    section="14",
    summary="the token that each request's drafter continues from",
    inputs=Inputs(
        params=_Params,
        problem=_problem,
        unreal=_unreal,
        has_batch=False,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_steps,
        faults={
            "vocabulary of 0": wrong_value("vocab_size", 0),
            "vocabulary of another type": wrong_type("vocab_size"),
            "tokens of another type": wrong_type("sampled_token_ids"),
            "float tokens": Fault("sampled_token_ids", torch.Tensor.float),
            "1-D tokens": Fault("sampled_token_ids", torch.Tensor.flatten),
            "token below -1": Fault(
                "sampled_token_ids",
                lambda tokens: tokens - 1_000_000_000,
                applies=lambda case: _has_rows(case) and bool(case.params["sampled"][0]),
                cpu_only=True,
            ),
            "mask of another type": wrong_type("discard_request_mask"),
            "mask that is no bool": Fault("discard_request_mask", torch.Tensor.int),
            "mask of another batch": Fault(
                "discard_request_mask", lambda mask: mask[:-1], applies=_tight
            ),
            "int64 backup tokens": Fault("backup_next_token_ids", torch.Tensor.long),
            "backup tokens of another batch": Fault(
                "backup_next_token_ids", lambda backup: backup[:-1], applies=_tight
            ),
        },
    ),
    call=FunctionCall(prepare=_prepare, outputs=_outputs),
    contract=Contract(invariants=_invariants, diagnose=_diagnose),
    bench=Bench(cases=lambda batch: _steps(batch) if batch.num_requests == 64 else ()),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (prepare_next_token_ids_padded,)
