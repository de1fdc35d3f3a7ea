"""Operation of SPEC.md section 14: the slots of a batch whose queries got further tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from attnproof.harness.cases.batches.strategies import HIGHEST_BLOCK, make_batch
from attnproof.harness.consumer.batch import (
    expected_tokens,
    int64_array,
    slot_violations,
)
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.case import Batch, Count
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn
from attnproof.harness.model.place import Place
from attnproof.harness.model.relations import Joined, Relations
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.arguments import MetadataOf, Values
from attnproof.harness.operations.derived.derive import Example, derive_built_in, mostly, one_of
from attnproof.harness.operations.drafter.diagnosis import diagnose_slots
from attnproof.harness.operations.drafter.extended_cases import (
    engine_rows,
    extended_problem,
    extended_shapes,
    extended_unreal,
    smaller_batch,
    whole_rows,
)
from attnproof.harness.operations.shared.params import Few, InTurn, Positive
from attnproof.reference import compute_new_slot_mapping as reference

_NO_LIMIT = 2**31 - 1


def _examples() -> Iterator[Example]:
    for name, batch, more in extended_shapes():
        rejected = [row % (1 + min(q, 2)) for row, q in enumerate(batch.query_lens)] or [0]
        yield name, batch, {"more": more, "rejected": rejected}
    mixed = make_batch([3, 7, 2, 5], [7, 0, 3, 9], 4, order="descending")
    yield "all rejected", mixed, {"rejected": [3, 7, 2, 5]}
    for limit in (9, 10, 13, 14):
        yield f"max_model_len {limit}", mixed, {"max_model_len": limit}
    yield "position beyond its row's columns (K14)", mixed, {"columns": 2}
    yield "table without columns", mixed, {"columns": 0}
    for block_size in (1, 16, 256):
        highest = make_batch([3, 2], [block_size - 1, 0], block_size, first=HIGHEST_BLOCK - 4)
        yield f"highest block ids, block size {block_size} (K15)", highest, {}


def _steps(batch: Batch) -> Iterator[tuple[Batch, dict[str, Any]]]:
    whole = engine_rows(batch)
    rejected = [row % min(q, 4) if q else 0 for row, q in enumerate(whole.query_lens)]
    yield whole, {"rejected": rejected or [0]}


def _more(values: Values) -> int:
    """Return the further tokens of each row, of which none has fewer."""
    return int(min([values.params["more"], *values.batch.batch.query_lens]))


def _metadata(values: Values) -> MetadataOf:
    """Return the smaller batch with the block table of the extended one."""
    table = values.batch.block_table_with(values.stale)[:, : values.params["columns"]]
    smaller = smaller_batch(values.batch.batch, _more(values))
    return MetadataOf(smaller, {"block_table_tensor": table})


def _rejected(values: Values) -> np.ndarray:
    """Return for each token, padding included, whether it is rejected."""
    rejected, queries = np.zeros(values.sizes["N"], bool), values.batch.batch.query_lens
    counts = np.minimum(np.resize(values.params["rejected"], len(queries)), queries)
    for end, count in zip(np.cumsum(queries), counts, strict=True):
        rejected[end - count : end] = True
    return rejected


def _positions(values: Values) -> np.ndarray:
    tokens = expected_tokens(values.batch.batch).positions
    positions = np.full(values.sizes["N"], values.stale, np.int64)
    positions[: len(tokens)] = tokens
    positions[values["is_rejected_token_mask"]] = 0
    return positions.astype(np.int32 if values.params["narrow"] else np.int64)


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    slots = int64_array(outputs["result"])
    if (slots[_are_rejected(call)] != -1).any():
        yield Violation("result", "gives a slot to a rejected token")
    if (slots[call.facts.batch.num_tokens :] != -1).any():
        yield Violation("result", "gives a slot to graph padding")
    live = slots >= 0
    positions = int64_array(call["new_positions"])
    block_size = call.facts.batch.block_size
    if (slots[live] % block_size != positions[live] % block_size).any():
        yield Violation("result", "puts a token at another offset of its block")
    if (positions[live] >= call["max_model_len"]).any():
        yield Violation("result", "gives a slot to a position beyond max_model_len")


def _consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check that a rejected token is written nowhere, and any other one where it is read."""
    expected, width = expected_tokens(call.facts.batch), call["cad"].block_table_tensor.shape[1]
    unwritten = _are_rejected(call)[: len(expected.positions)]
    unwritten = unwritten | (expected.positions >= call["max_model_len"])
    unwritten |= expected.positions // expected.block_size >= width
    yield from slot_violations(expected, outputs["result"], "result", unwritten=unwritten)


def _diagnose(call: Call, _place: Place, expected: Any, got: Any) -> str:
    if not isinstance(got, torch.Tensor) or got.shape != expected.shape:
        return ""
    wrong = (expected != got).cpu().numpy()
    if wrong.any() and _are_rejected(call)[wrong].all():
        return "a slot for a rejected token"
    return diagnose_slots(expected, got)


def _are_rejected(call: Call) -> np.ndarray:
    mask: np.ndarray = call["is_rejected_token_mask"].cpu().numpy()
    return mask


compute_new_slot_mapping = derive_built_in(
    reference,
    section="14",
    summary="slots of a batch whose queries all got further tokens",
    values={
        "N": lambda values: values.sizes["T"] + values.batch.batch.padded_tokens,
        "cad": _metadata,
        "new_positions": _positions,
        "is_rejected_token_mask": _rejected,
        "num_new_tokens": _more,
    },
    parameters={
        "more": one_of(Few, 1, 0, 2, 3),
        "rejected": mostly(InTurn, [0], [1], [0, 2, 1]),
        "max_model_len": mostly(Positive, _NO_LIMIT, 1, 2, 8, 9),
        "columns": mostly(Count | None, None, 0, 2),
        "narrow": mostly(bool, False, True),
    },
    adapt=whole_rows,
    examples=_examples,
    steps=_steps,
    problem=extended_problem,
    unreal=extended_unreal,
    faults={
        "positions of another batch": Fault(
            ("new_positions", "is_rejected_token_mask"),
            lambda positions, mask: (positions[:-1], mask[:-1]),
            applies=lambda case: case.num_tokens > 0,
        ),
    },
    relations=Relations(
        joined={"result": Joined.ENTRIES},
        per_request=frozenset({"rejected"}),
        slots=frozenset({"result"}),
    ),
    invariants=_invariants,
    consume=_consumed,
    diagnose=_diagnose,
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (compute_new_slot_mapping,)
