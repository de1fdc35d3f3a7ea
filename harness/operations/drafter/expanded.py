"""Operation of SPEC.md section 14: the inputs of a drafter that drafts in parallel."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.consumer.batch import int64_array
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.arguments import Values
from attnproof.harness.operations.derived.derive import Example, derive_built_in, mostly, one_of
from attnproof.harness.operations.derived.of_batch import of_role
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.harness.operations.shared.params import Few, InTurn, Some
from attnproof.reference import copy_and_expand_eagle_inputs as reference

_IDS, _POSITIONS = "out_input_ids", "out_positions"
_REJECTED, _MASKED = "out_is_rejected_token_mask", "out_is_masked_token_mask"
_NEW, _HIDDEN = "out_new_token_indices", "out_hidden_state_mapping"
_OUTPUTS = (_IDS, _POSITIONS, _REJECTED, _MASKED, _NEW, _HIDDEN)
_TARGET, _SAMPLED, _PARALLEL, _PADDING = 1000, 5_000_000, 7_000_000, 3
"""First token ids of the target and of the sampled tokens; the two usual ids."""


class _Rows(NamedTuple):
    """Rows of a call."""

    starts: np.ndarray
    """(R + 1,) first output of each row, then the number of outputs."""
    kept: np.ndarray
    """(R,) target tokens that each row copies."""


def _rows(call: Call) -> _Rows:
    offsets, ends = int64_array(call["query_start_loc"]), int64_array(call["query_end_loc"])
    shift = int(call["shift_input_ids"])
    more = call["num_padding_slots_per_request"] - shift
    kept = ends + 1 - offsets[:-1] - shift
    return _Rows(offsets + np.arange(len(offsets)) * more, kept)


def _problem(case: Case) -> str:
    batch = batch_of(case)
    return (
        "" if all(batch.query_lens) and not batch.padded_requests else "batch: rows without tokens"
    )


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


def _examples() -> Iterator[Example]:
    yield "SPEC example", make_batch([3, 1], [5, 0], 4), {"rejected": [1, 0]}
    mixed = make_batch([4, 1, 9, 3, 2], [7, 4, 0, 6, 3], 4)
    for shift in (True, False):
        for slots in (1, 4):
            params: dict[str, Any] = {"shift_input_ids": shift}
            params["num_padding_slots_per_request"] = slots
            yield f"none rejected, {slots} new tokens, shifted {shift}", mixed, params
        most = {"rejected": [3, 0, 8, 2, 1], "shift_input_ids": shift}
        yield f"all but the first rejected, shifted {shift}", mixed, most
    lengths = [1 + row % 4 for row in range(600)]
    many = make_batch(lengths, [row % 7 for row in range(600)], 4)
    rejected = [row % 4 // 2 for row in range(600)]
    yield "many requests over several tiles", many, {"rejected": rejected}


def _steps(batch: Batch) -> Iterator[tuple[Batch, dict[str, Any]]]:
    rejected = [row % min(q, 4) for row, q in enumerate(batch.query_lens)] or [0]
    slots, shift = 1 + batch.num_requests % 4, bool(batch.num_tokens % 2)
    numbers = {"num_padding_slots_per_request": slots, "shift_input_ids": shift}
    yield batch, {"rejected": rejected} | numbers


def _targets(values: Values) -> np.ndarray:
    target: np.ndarray = _TARGET + np.arange(values.sizes["T"])
    if len(target) % 2:  # marks are ids of the vocabulary, which a request may have too
        target[1::5], target[3::5] = _PADDING, _PARALLEL
    return _ids(values, target)


def _sampled(values: Values) -> np.ndarray:
    sampled: np.ndarray = _SAMPLED + np.arange(values.sizes["R"])
    if values.sizes["T"] % 2:
        sampled[1::3] = _PARALLEL
    return sampled.astype(np.int32)


def _ids(values: Values, ids: np.ndarray) -> np.ndarray:
    array: np.ndarray = ids.astype(np.int64 if values.params["wide"] else np.int32)
    return array


def _target_positions(values: Values) -> np.ndarray:
    positions = of_role(values.batch, "positions", values.pattern)
    if values.pattern:  # a drafter has set the positions beyond the model's last one to 0
        starts = np.repeat(values.batch.query_start_loc[:-1], values.batch.batch.query_lens)
        behind = np.arange(len(positions)) > starts
        positions = np.where(behind & (positions == positions.max(initial=0)), 0, positions)
    return positions.astype(np.int32 if values.params["wide"] else np.int64)


def _ends(values: Values) -> np.ndarray:
    """Return the last token of each row that is not rejected."""
    offsets = values.batch.query_start_loc
    rejected = np.resize(values.params["rejected"], len(offsets) - 1)
    ends: np.ndarray = offsets[1:] - 1 - np.minimum(rejected, np.diff(offsets) - 1)
    return ends.astype(np.int32)


def _drafted(values: Values) -> int:
    more = values.params["num_padding_slots_per_request"] - values.params["shift_input_ids"]
    return int(values.sizes["T"] + values.sizes["R"] * more + values.params["beyond"])


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check each row's outputs against each other and against the target's tokens."""
    (starts, kept), slots = _rows(call), call["num_padding_slots_per_request"]
    padding, parallel = call["padding_token_id"], call["parallel_drafting_token_id"]
    offsets = int64_array(call["query_start_loc"])
    ids, positions = (int64_array(outputs[name]) for name in (_IDS, _POSITIONS))
    rejected, masked = (outputs[name].cpu().numpy() for name in (_REJECTED, _MASKED))
    sampled = int64_array(call["next_token_ids"])
    new, first = int64_array(outputs[_NEW]), int64_array(call["target_positions"])
    for row, (begin, end) in enumerate(pairwise(starts.tolist())):
        live = begin + int(kept[row]) + slots
        if rejected[begin:live].any() or not rejected[live:end].all():
            yield Violation(_REJECTED, "does not mark the row's rejected tokens")
        if masked[begin:end].sum() != slots - 1:
            yield Violation(_MASKED, "does not mark the row's parallel drafts")
        expected = first[offsets[row]] + np.arange(live - begin)
        if not np.array_equal(positions[begin:live], expected):
            yield Violation(_POSITIONS, "does not rise from the row's first position")
        if positions[live:end].any():
            yield Violation(_POSITIONS, "is not 0 at a rejected token")
        if (ids[live:end] != padding).any():
            yield Violation(_IDS, "is not the padding id at a rejected token")
        own = new[row * slots : (row + 1) * slots]
        if not np.array_equal(own, np.arange(live - slots, live)):
            yield Violation(_NEW, "are not the last tokens before the rejected ones")
        elif ids[own[0]] != sampled[row] or (ids[own[1:]] != parallel).any():
            yield Violation(_IDS, "has other new tokens than the sampled one and drafts")
    if call["shift_input_ids"]:
        yield from _hidden_violations(call, outputs)


def _hidden_violations(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check that hidden states of kept tokens go to the output at their position."""
    tokens, offsets = call["total_input_tokens"], int64_array(call["query_start_loc"])
    mapping = int64_array(outputs[_HIDDEN])[:tokens]
    if len(np.unique(mapping)) != tokens:
        yield Violation(_HIDDEN, "sends two hidden states to one token")
        return
    kept = np.arange(tokens) <= np.repeat(int64_array(call["query_end_loc"]), np.diff(offsets))
    positions = int64_array(call["target_positions"])[:tokens]
    kept &= positions > 0  # those beyond the model's last position are 0
    if (int64_array(outputs[_POSITIONS])[mapping[kept]] != positions[kept]).any():
        yield Violation(_HIDDEN, "sends a hidden state to another position")


def _diagnose(call: Call, place: Place, expected: Any, got: Any) -> str:
    if not isinstance(got, torch.Tensor) or got.shape != expected.shape or not len(got):
        return ""
    wrong = (expected != got).cpu().numpy()
    if place.field in (_NEW, _HIDDEN):
        return "indices do not follow the layout"
    starts, all_kept = _rows(call)
    if wrong[starts[-1] :].any():
        return "writes behind the last request"
    index = int(np.argmax(wrong))
    row = int(np.searchsorted(starts, index, side="right")) - 1
    j, kept = index - int(starts[row]), int(all_kept[row])
    part = "copied token" if j < kept else "sampled token" if j == kept else "parallel draft"
    is_live = j < kept + call["num_padding_slots_per_request"]
    return f"wrong {part if is_live else 'rejected token'}"


def _fits(field: str, case: Case) -> bool:
    """True if the output has elements, and none beyond those that are written."""
    is_written = field != _HIDDEN or case.params["shift_input_ids"]
    return bool(case.num_requests and not case.params["beyond"] and is_written)


copy_and_expand_eagle_inputs = derive_built_in(
    reference,
    section="14",
    summary="tokens, positions and masks of a drafter that drafts in parallel",
    values={
        "target_token_ids": _targets,
        "target_positions": _target_positions,
        "next_token_ids": _sampled,
        "query_end_loc": _ends,
        **dict.fromkeys(("I", "P", "A", "B"), _drafted),
        "D": lambda values: (
            values.sizes["R"] * values.params["num_padding_slots_per_request"]
            + values.params["beyond"]
        ),
        "H": lambda values: values.sizes["T"] + values.params["beyond"],
    },
    parameters={
        "rejected": mostly(InTurn, [0], [1], [1, 0, 2], [9]),
        "num_padding_slots_per_request": one_of(Some, 2, 1, 3, 4),
        "padding_token_id": one_of(Few, _PADDING, 0),
        "parallel_drafting_token_id": one_of(Count, _PARALLEL, 0),
        "beyond": one_of(Few, 0, 2),
        "wide": mostly(bool, False, True),
    },
    adapt=_live,
    examples=_examples,
    steps=_steps,
    problem=_problem,
    unreal=lambda case: (
        "token ids of an engine are int32, positions int64" if case.params["wide"] else ""
    ),
    faults={
        f"{field}: an entry less": Fault(field, lambda out: out[:-1], applies=partial(_fits, field))
        for field in _OUTPUTS
    }
    | {
        "another number of tokens": Fault(
            "total_input_tokens",
            lambda tokens: tokens - 1,
            applies=lambda case: case.num_requests > 0,
            cpu_only=True,
        ),
        "ends outside their rows": Fault(
            "query_end_loc",
            lambda ends: ends + 1_000_000,
            applies=lambda case: case.num_requests > 0,
            cpu_only=True,
        ),
    },
    invariants=_invariants,
    diagnose=_diagnose,
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (copy_and_expand_eagle_inputs,)
