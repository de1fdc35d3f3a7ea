"""Operation of SPEC.md section 14: the token that each request's drafter continues from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from attnproof.harness.consumer.batch import int64_array
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.operation import BuiltIn
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.arguments import Values
from attnproof.harness.operations.derived.derive import Example, derive_built_in
from attnproof.harness.operations.derived.params import layout_of
from attnproof.reference import prepare_next_token_ids_padded as reference

NEXT, COUNT = "next_token_ids", "valid_sampled_tokens_count"
_BACKUP = 2**30
"""Backup token of the first request; tokens of cases are smaller."""
_VOCABULARY, _LARGE_VOCABULARY = 128_000, 262_144


def _unreal(case: Case) -> str:
    params = case.params
    rows = np.resize(params["sampled_token_ids"], (params["size_N"], params["size_M"]))
    if not rows.size:
        return "an engine samples a token for each request of a step"
    if ((rows[:, :-1] == -1) & (rows[:, 1:] != -1)).any():
        return "an engine accepts the first of a row's tokens"
    return "an engine's are int32" if layout_of(case).other_dtypes else ""


def _of(rows: list[list[int]], discarded: list[bool] | None = None, **more: Any) -> dict[str, Any]:
    """Return the parameters of these sampled tokens."""
    sizes = {"size_N": len(rows), "size_M": len(rows[0]) if rows else 2}
    sampled = [token for row in rows for token in row] or [-1]
    flags = {"discard_request_mask": discarded or [False], "vocab_size": _VOCABULARY}
    return {"sampled_token_ids": sampled} | sizes | flags | more


def _accepted(accepted: list[int], width: int) -> list[list[int]]:
    """Return the sampled tokens of requests that accept some of `width` tokens."""
    return [
        [100 * row + i if i < n else -1 for i in range(width)] for row, n in enumerate(accepted)
    ]


def _examples() -> Iterator[Example]:
    spec = [[5, 7, -1], [-1, -1, -1], [4, 9, 2]]
    yield "SPEC example", None, _of(spec, [False, False, True], vocab_size=8)
    drafts = _accepted([0, 1, 2, 3, 4], 4)
    yield "none to all of three drafts accepted (K39)", None, _of(drafts, spare=3)
    yield "one token each, no drafts (K36)", None, _of(_accepted([1, 0, 1], 1))
    discarded = _of(_accepted([3, 0, 1], 3), [True, True, False], spare=3)
    yield "discarded rows with tokens", None, discarded
    last = _of([[9, 10, 11], [10, 10, 10]], vocab_size=10)
    yield "tokens at the end of the vocabulary", None, last
    for size in (_LARGE_VOCABULARY, 3_000_000):
        tokens = [[size - 1, size // 2 + 1, -1], [2**16, size - 2, size - 1], [5, -1, -1]]
        yield f"vocabulary of {size} tokens", None, _of(tokens, vocab_size=size)
    yield "token 0", None, _of([[0, -1], [0, 0]])
    yield "valid tokens behind rejected ones", None, _of([[-1, 5, -1, 6], [3, -1, -1, -1]])
    yield "no tokens", None, _of([[], [], []])
    for width in (7, 8, 9, 17):
        yield (
            f"{width} tokens at a kernel tile",
            None,
            _of(_accepted([width, width - 1, 1, 0], width)),
        )


def _steps(batch: Batch) -> Iterator[tuple[Batch, dict[str, Any]]]:
    accepted = _accepted([1 + row % 4 for row in range(batch.num_requests)], 4)
    yield batch, _of(accepted, [query_len > 4 for query_len in batch.query_lens])


def _backup(values: Values) -> np.ndarray:
    return np.arange(_BACKUP, _BACKUP + values.sizes["N"])


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


prepare_next_token_ids_padded = derive_built_in(
    reference,
    section="14",
    summary="the token that each request's drafter continues from",
    values={"backup_next_token_ids": _backup},
    examples=_examples,
    steps=_steps,
    unreal=_unreal,
    invariants=_invariants,
    diagnose=_diagnose,
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (prepare_next_token_ids_padded,)
