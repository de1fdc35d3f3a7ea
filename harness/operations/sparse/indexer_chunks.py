"""Operation of SPEC.md section 22: chunks of prefills in which an indexer scores keys.

Bug classes: a request left out or in two chunks, keys beyond the workspace (#51252), a buffer of
scores that overflows, a query of a cut request that is scored twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from attnproof.harness.consumer.batch import int64_array
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.model.operation import BuiltIn
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.arguments import Values
from attnproof.harness.operations.derived.derive import Example, Step, derive_built_in, one_of
from attnproof.harness.operations.shared.params import InTurn, Some
from attnproof.reference import split_indexer_prefill_chunks as reference

_MOST_CHUNKS = 2**14


def _examples() -> Iterator[Example]:
    queries = [4, 3, 0, 9, 1]
    for bytes_ in (1, 3, 16, 4 * 4 * 20, 4 * 27 * 19, 4 * 27 * 19 - 1, 2**31 - 1):
        yield f"{bytes_} bytes of scores", None, {"max_logits_bytes": bytes_, "queries": queries}
    for size in (19, 20, 26, 27, 28):
        yield f"workspace of {size} rows", None, {"workspace": size, "queries": queries}
    sizes = {"queries": [65536, 65535, 65537], "workspace": 2**18}
    yield "scores beyond int32", None, sizes | {"max_logits_bytes": 2**31 - 1}
    yield "no keys", None, {"queries": [0, 5, 0], "longer": [0], "ratio": 128}


def _steps(batch: Batch) -> Iterator[Step]:
    rows = {"queries": [*batch.query_lens] or [0], "longer": [*batch.computed_lens] or [0]}
    yield batch, rows | {"size_N": batch.num_requests, "workspace": 4 * batch.block_size}


def _queries(values: Values) -> np.ndarray:
    return np.resize(values.params["queries"], values.sizes["N"])


def _keys(values: Values) -> np.ndarray:
    """Return rows of keys: of so many tokens one is kept."""
    lengths = _queries(values) + np.resize(values.params["longer"], values.sizes["N"])
    kept: np.ndarray = lengths // values.params["ratio"]
    return kept


def _problem(case: Case) -> str:
    """Return the problem of queries that are cut into very many chunks."""
    params = case.params
    most = max(1, params["max_logits_bytes"] // 4)
    count = 0
    for row in range(params["size_N"]):
        queries = params["queries"][row % len(params["queries"])]
        keys = (queries + params["longer"][row % len(params["longer"])]) // params["ratio"]
        count += -(-queries // max(1, most // max(1, keys)))
    return "" if count <= _MOST_CHUNKS else f"queries: {count} chunks, at most {_MOST_CHUNKS}"


def _scored(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Require each query once, in order, in chunks that fit."""
    keys, queries = (
        int64_array(call[name]) for name in ("compressed_seq_lens_cpu", "prefill_query_lens_cpu")
    )
    scored: list[int] = []
    for start, end, first, last in outputs["chunks"]:
        rows = slice(start - call["request_offset"], end - call["request_offset"])
        held, size = int(keys[rows].sum()), last - first
        before = int(queries[: rows.start].sum())
        scored += range(before + first, before + min(last, int(queries[rows].sum())))
        if end - start > 1 and held > call["workspace_size"]:
            yield Violation("chunks", "has more keys than the workspace")
        if size > 1 and 4 * held * size > call["max_logits_bytes"]:
            yield Violation("chunks", "has more scores than the buffer")
    if scored != [*range(queries.sum())]:
        yield Violation("chunks", "does not have each query once, in order")


def _numbers(_call: Call, result: Any) -> Outputs:
    """Return the bounds of both slices of each chunk."""
    return {"chunks": [(a.start, a.stop, b.start, b.stop) for a, b in result]}


split_indexer_prefill_chunks = derive_built_in(
    reference,
    section="22",
    summary="chunks of prefills in which an indexer scores keys",
    values={
        "compressed_seq_lens_cpu": _keys,
        "prefill_query_lens_cpu": _queries,
        "workspace_size": lambda values: max(
            1, values.params["workspace"], *values["compressed_seq_lens_cpu"]
        ),
    },
    parameters={
        "workspace": one_of(Count, 40, 1, 2**31 - 1, means="rows, or those of the longest request"),
        "queries": one_of(InTurn, [4, 3, 9], [1], [0, 1], [100, 3], means="query tokens"),
        "longer": one_of(InTurn, [0, 7, 2], [0], [500], means="computed tokens"),
        "ratio": one_of(Some, 1, 4, 128, means="tokens of which one key is kept"),
    },
    examples=_examples,
    steps=_steps,
    problem=_problem,
    outputs=_numbers,
    invariants=_scored,
    diagnose=lambda *_: "chunks cut elsewhere",
    built_in=BuiltIn(shared="plans a step on the host, with a few numbers a request"),
)

OPERATIONS = (split_indexer_prefill_chunks,)
