"""Operation of SPEC.md section 22: chunks of context that latent attention reads.

Bug classes: a start that no block begins at (#46114), a context that is read twice or not at all,
chunks whose number of ranks does not divide the workspace (#41229), wrong answers of contexts
beyond the workspace (#26042).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

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
from attnproof.reference import build_mla_chunked_context_metadata as reference

_MOST_ROWS = 2**15
"""Each of them is an entry of a list that is compared."""
_NUMBERS = ("continuation_token_end", "is_continuation")
_SLICES = ("request_slice", "token_slice")
_TENSORS = ("query_start_loc", "starts", "seq_lens", "cu_seq_lens", "token_to_seq")
_LOCAL = ("padded_local_seq_lens", "padded_local_cu_seq_lens", "local_starts")


def _examples() -> Iterator[Example]:
    contexts = [5, 33, 0, 16, 40, 1]
    for ranks in (1, 2, 3):
        for aligned in (False, True):
            for turns in (1, 2, 3, 20):
                sizes = {"contexts": contexts, "dcp_world_size": ranks, "turns": turns}
                name = f"{turns} turns of {ranks} ranks" + ", whole blocks" * aligned
                yield name, None, sizes | {"align_chunk_to_block": aligned, "size_N": 6}
    yield "a workspace that ends inside a turn", None, {"over": 3, "dcp_world_size": 2}


def _steps(batch: Batch) -> Iterator[Step]:
    rows = {"contexts": [*batch.computed_lens] or [0], "queries": [*batch.query_lens] or [0]}
    yield batch, rows | {"size_N": batch.num_requests, "turns": 4}


def _contexts(values: Values) -> np.ndarray:
    return np.resize(values.params["contexts"], values.sizes["N"])


def _offsets(values: Values) -> np.ndarray:
    return np.append(0, np.cumsum(np.resize(values.params["queries"], values.sizes["N"])))


def _workspace(values: Values) -> int:
    """Return whole turns and some rows more."""
    return _step(values) * int(values.params["turns"]) + int(values.params["over"])


def _step(values: Values | Call) -> int:
    """Return the rows at whose multiples a context may be cut."""
    block = values["block_size"] if values["align_chunk_to_block"] else 1
    ranks = values["dcp_world_size"]
    return math.lcm(block, ranks * values["dcp_local_block_size"] if ranks > 1 else 1)


def _problem(case: Case) -> str:
    rows = int(np.resize(case.params["contexts"], case.params["size_N"]).sum())
    return "" if rows <= _MOST_ROWS else f"contexts: {rows} rows, at most {_MOST_ROWS} are allowed"


def _fields(_call: Call, result: Any) -> Outputs:
    """Return each field of all chunks: lists of numbers, and lists of lists."""
    if result is None:
        return {"chunks": None}
    fields: dict[str, Any] = {name: [] for name in (*_SLICES, *_NUMBERS, *_TENSORS, *_LOCAL)}
    for chunk in result.chunks:
        for name, values in fields.items():
            value = getattr(chunk, name)
            value = value.tolist() if isinstance(value, torch.Tensor) else value
            values.append((value.start, value.stop) if isinstance(value, slice) else value)
    empty = [(each.start, each.stop) for each in result.empty_token_slices]
    return {**fields, "empty_token_slices": empty}


def _read_once(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Require each row of context once, in order, in chunks that the workspace holds."""
    contexts = int64_array(call["context_lens_cpu"])
    if "chunks" in outputs:
        if contexts.any():
            yield Violation("chunks", "leaves contexts out")
        return
    read = np.zeros_like(contexts)
    step = _step(call)
    for (start, end), lengths, local in zip(
        outputs["request_slice"], outputs["seq_lens"], outputs["padded_local_seq_lens"], strict=True
    ):
        held = sum(lengths) if local is None else sum(local) * call["dcp_world_size"]
        if held > call["chunked_prefill_workspace_size"]:
            yield Violation("seq_lens", "have more rows than the workspace")
        if (read[start:end] % step).any():
            yield Violation("seq_lens", "cut a context where none may be cut")
        if (read[start + 1 : end] > 0).any():
            yield Violation("request_slice", "continues a request that is not the first")
        read[start:end] += lengths
    if (read != contexts).any():
        yield Violation("seq_lens", "are not all rows of the contexts, each once")


def _diagnose(_call: Call, place: Place, _expected: Any, _got: Any) -> str:
    cut = place.field in ("seq_lens", "request_slice", "starts")
    return "a context cut elsewhere" if cut else ""


build_mla_chunked_context_metadata = derive_built_in(
    reference,
    section="22",
    summary="chunks of context that latent attention reads",
    values={
        "context_lens_cpu": _contexts,
        "prefill_query_start_loc_cpu": _offsets,
        "chunked_prefill_workspace_size": _workspace,
        "block_size": lambda values: values.params["block"],
        "dcp_world_size": lambda values: values.params["dcp_world_size"],
        "dcp_local_block_size": lambda values: values.params["interleave"],
    },
    parameters={
        "contexts": one_of(InTurn, [9, 20], [5], [0, 7], [1, 2, 300, 4], means="computed tokens"),
        "queries": one_of(InTurn, [3, 1], [2], [0, 4], means="query tokens"),
        "block": one_of(Some, 4, 1, 16, 3, means="tokens per block"),
        "dcp_world_size": one_of(Some, 1, 2, 3, 8, means="ranks that share the workspace"),
        "interleave": one_of(Some, 1, 2, 4, means="tokens that a rank holds in turn"),
        "turns": one_of(Some, 3, 1, 2, 20, means="pieces between two cuts that the workspace has"),
        "over": one_of(Few, 0, 1, 5, means="rows of the workspace behind the last piece"),
    },
    examples=_examples,
    steps=_steps,
    problem=_problem,
    faults={
        "a workspace below a cut": Fault(
            "chunked_prefill_workspace_size",
            lambda size: size // 4096,
            applies=lambda case: case.params["dcp_world_size"] > 1,
        ),
    },
    outputs=_fields,
    invariants=_read_once,
    diagnose=_diagnose,
    built_in=BuiltIn(shared="plans a step on the host, with a few numbers a request"),
)

OPERATIONS = (build_mla_chunked_context_metadata,)
