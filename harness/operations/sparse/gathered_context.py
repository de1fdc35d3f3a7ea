"""Operation of SPEC.md section 22: context of latent attention that all ranks gathered.

Bug classes: padding taken for context in a later chunk (K63), rows of another rank or request.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import numpy as np

from attnproof.harness.consumer.batch import int64_array
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.arguments import Values
from attnproof.harness.operations.derived.derive import Example, Step, derive_built_in, one_of
from attnproof.harness.operations.shared.params import Few, InTurn, Some
from attnproof.reference import reorg_kvcache as reference


def _examples() -> Iterator[Example]:
    for ranks in (1, 2, 3, 8):
        for chunk in range(3):
            name = f"chunk {chunk} of {ranks} ranks" + " (K63)" * (chunk > 0 and ranks > 1)
            contexts = [10 * ranks + 9, 9, 8, 12 * ranks + 1]
            yield name, None, {"contexts": contexts, "chunk": chunk, "ranks": ranks}


def _steps(batch: Batch) -> Iterator[Step]:
    yield batch, {"contexts": [*batch.computed_lens][:64] or [1], "chunk": batch.num_tokens % 2}


def _held(values: Values) -> list[list[int]]:
    """Return the rows of each request's context that each rank holds."""
    ranks, interleave = values.params["ranks"], values.params["interleave"]
    owners = [np.arange(n) // interleave % ranks for n in values.params["contexts"]]
    return [np.bincount(each, minlength=ranks).tolist() for each in owners]


def _starts(values: Values) -> list[int]:
    """Return where the chunk begins in what a rank holds: a context may end before."""
    first = values.params["chunk"] * values.params["rows"]
    return [min(first, _whole(values, length)) for length in values.params["contexts"]]


def _padded(values: Values) -> list[int]:
    lengths = zip(values.params["contexts"], _starts(values), strict=True)
    return [min(values.params["rows"], _whole(values, n) - first) for n, first in lengths]


def _whole(values: Values, length: int) -> int:
    """Return the rows that a rank holds of a context, whole turns."""
    turn = values.params["ranks"] * values.params["interleave"]
    return int(-(-length // turn) * values.params["interleave"])


def _counts(values: Values) -> list[int]:
    rows = zip(_held(values), _starts(values), _padded(values), strict=True)
    return [sum(min(max(0, n - a), padded) for n in held) for held, a, padded in rows]


def _problem(case: Case) -> str:
    """Return the problem of a chunk that no request has a row in: an engine ends before."""
    params = case.params
    turn = params["ranks"] * params["interleave"]
    whole = max(-(-n // turn) * params["interleave"] for n in params["contexts"])
    return "" if whole > params["chunk"] * params["rows"] else "chunk: behind all contexts"


def _rows(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Require the rows of each request in turn, and of each rank among them."""
    starts = [0, *accumulate(call["padded_local_chunk_seq_lens_lst"])]
    expected = [
        rank * call["toks"] + starts[request] + row
        for request, held in enumerate(call["local_context_lens_allranks"])
        for rank, length in enumerate(held)
        for row in range(starts[request + 1] - starts[request])
        if call["local_starts"][request] + row < length
    ]
    for name, source in (("kv_c_normed", "allgatered_kv_c_normed"), ("k_pe", "allgatered_k_pe")):
        if not np.array_equal(int64_array(outputs[name]), int64_array(call[source])[expected]):
            yield Violation(name, "is not the context of the requests in turn")


def _numbered(axis: str, values: Values) -> np.ndarray:
    """Return elements of which each says its place."""
    shape = values.sizes["G"], values.sizes[axis]
    return np.arange(shape[0] * shape[1], dtype=np.int32).reshape(shape)


def _diagnose(_call: Call, _place: Place, expected: Any, got: Any) -> str:
    more = len(got) > len(expected)
    return "padding taken for context" if more else "rows of another rank or request"


reorg_kvcache = derive_built_in(
    reference,
    section="22",
    summary="context that all ranks gathered, by request",
    values={
        "G": lambda values: values["toks"] * values.params["ranks"],
        "D": lambda values: values.params["width"],
        "E": lambda values: values.params["rope_width"],
        "allgatered_kv_c_normed": lambda values: _numbered("D", values),
        "allgatered_k_pe": lambda values: _numbered("E", values),
        "padded_local_chunk_seq_lens_lst": _padded,
        "local_context_lens_allranks": _held,
        "local_starts": _starts,
        "sum_seq_len": lambda values: sum(_counts(values)),
        "max_seq_len": lambda values: max(_counts(values)),
        "toks": lambda values: sum(_padded(values)) + values.params["more"],
    },
    parameters={
        "contexts": one_of(InTurn, [9, 20], [5], [0, 7], [1, 2, 30, 4], means="tokens of each"),
        "ranks": one_of(Some, 2, 1, 3, 8),
        "interleave": one_of(Some, 1, 2, 4, means="tokens that a rank holds in turn"),
        "rows": one_of(Some, 4, 1, 8, 16, means="rows of a rank and request in a chunk"),
        "chunk": one_of(Few, 0, 1, 2),
        "width": one_of(Some, 3, 1, 8),
        "rope_width": one_of(Some, 2, 1, 4),
        "more": one_of(Few, 0, 5, means="rows of a rank behind the last request"),
    },
    examples=_examples,
    steps=_steps,
    problem=_problem,
    faults={
        "a start less": Fault("local_starts", lambda starts: starts[:-1]),
        "fewer rows of a rank": Fault("toks", lambda _: 0),
    },
    invariants=_rows,
    diagnose=_diagnose,
    built_in=BuiltIn(shared="one gather of rows a chunk"),
)

OPERATIONS = (reorg_kvcache,)
