"""Class of SPEC.md section 7 that keeps requests between steps: `PersistentBatch`.

One case is one batch. Earlier requests fill all rows and buffers and are removed; then the
batch's requests are added and one step is built. `batch_sequence` runs many steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import HIGHEST_BLOCK, batches, make_batch
from attnproof.harness.cases.batches.tensors import BatchArrays, batch_arrays
from attnproof.harness.cases.memory.arena import STALE_PATTERNS
from attnproof.harness.consumer.batch import expected_tokens, metadata_violations, slot_violations
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import ClassCall, Clocked, bound
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.persistent_batch.faults import FAULTS, Misuse
from attnproof.harness.operations.persistent_batch.row_state import left_behind
from attnproof.harness.operations.shared.metadata import (
    BatchFacts,
    batch_of,
    metadata_outputs,
    mirror_violations,
)
from attnproof.harness.operations.shared.params import Few, Params

NAME = "PersistentBatch"
_DUMMY = "dummy."
"""Prefix of the output fields of the dummy run's metadata."""
_MIRRORS = "mirrors of their own"
_STATE = ("num_blocks", "num_computed_tokens")
_SIZES = ("max_num_reqs", "max_num_tokens", "max_num_blocks", "block_size")
_UNUSED = {
    "dtype": "int32",
    "strided": False,
    "query_slack": 0,
    "seq_slack": 0,
    "causal": True,
    "logits_indices": None,
    "logits_padding": 0,
    "encoder_seq_lens": None,
    "dcp_local_seq_lens": None,
    "subclassed": False,
    "later": False,
    "prompt_lens": None,
}
"""Fields of a case's batch that a `PersistentBatch` decides itself: layout and optional fields."""


@dataclass(frozen=True, kw_only=True)
class _StepFacts(BatchFacts):
    arrays: BatchArrays
    requests: list[tuple[str, list[int], int]]
    """Id, blocks and computed tokens of each request."""
    scheduled: dict[str, int]
    """Query tokens of each request in the step."""
    padding: tuple[int, ...]
    """Rows and tokens of the padded step, nothing for a step that is built without padding."""
    stale: int
    """Block id in all columns of earlier requests."""
    dummy: int
    """Requests of the dummy batch, 0 for none."""
    look: bool
    """True if every array with one entry a row is checked."""


_MOST_BLOCKS = 2**20
"""Maximum number of blocks that fill the rows of earlier requests."""


class _Params(Params):
    spare_rows: Few
    dummy: Few
    look: bool


def _problem(case: Case) -> str:
    batch = batch_of(case)
    wrong = [name for name, value in _UNUSED.items() if getattr(batch, name) != value]
    if wrong:
        return f"batch.{wrong[0]}: a PersistentBatch decides it itself"
    columns = max((len(blocks) for blocks in batch.blocks), default=0) + batch.spare_columns
    if max(1, columns) * batch.block_size > 2**31 - 1:
        return f"batch.spare_columns: {columns} columns hold more tokens than int32 counts"
    rows = batch.num_requests + batch.padded_requests + case.params["spare_rows"] + 1
    if rows * (columns + 1) > _MOST_BLOCKS:
        return f"batch.spare_columns: {rows} rows of {columns} columns are filled one by one"
    return ""


def _case(batch: Batch, *, spare_rows: int = 0, dummy: int = 0, look: bool = False) -> Case:
    """Return the case of a batch.

    `dummy`: requests of a dummy batch after the step, 0 for none. `look`: True if every
    array with one entry a row is checked.
    """
    params = {"spare_rows": spare_rows, "dummy": dummy, "look": look}
    return Case(NAME, msgspec.structs.replace(batch, **_UNUSED), params)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    batch = draw(batches())
    spare_rows, dummy = draw(_SPARE), draw(_SPARE)
    return _case(batch, spare_rows=spare_rows, dummy=dummy, look=draw(_LOOK) == 1)


_SPARE, _LOOK = st.integers(0, 2), st.integers(0, 15)


def _boundaries() -> Iterator[tuple[str, Case]]:
    mixed = make_batch([1, 5, 0, 3], [7, 0, 4, 9], 4, spare_columns=2, order="descending")
    padded = make_batch([2, 2, 2], [3, 0, 9], 4, padded_requests=2, padded_tokens=4)
    yield "mixed batch", _case(mixed)
    yield "every per-row array moves with its row (K12)", _case(mixed, look=True)
    yield "padded rows hold no earlier state (K13)", _case(padded, spare_rows=1)
    yield "slot buffer behind the tokens (K17)", _case(make_batch([3], [0], 4, spare_slots=9))
    yield "dummy run gives no slots (K17)", _case(mixed, spare_rows=3, dummy=3)
    yield "shorter request in a longer row (K18)", _case(make_batch([1], [2], 4, spare_columns=5))
    yield "no requests", _case(make_batch([], [], 4))
    yield "no requests, padded", _case(make_batch([], [], 4, padded_requests=3, padded_tokens=3))
    yield "requests without tokens", _case(make_batch([0, 0], [0, 5], 4))
    yield "highest block ids", _case(make_batch([5, 2], [14, 0], 16, first=HIGHEST_BLOCK - 4))
    yield "all rows and tokens used", _case(make_batch([4] * 8, [0] * 8, 4), dummy=8)
    yield (
        "many requests",
        _case(
            make_batch(
                [1 + row % 3 for row in range(300)],
                [row % 7 for row in range(300)],
                4,
                order="shuffled",
            ),
            dummy=7,
        ),
    )
    yield "more tokens than a kernel tile", _case(make_batch([1300, 1], [5, 2], 16))


def _from_batch(batch: Batch) -> Iterator[Case]:
    yield _case(batch, spare_rows=batch.num_tokens % 2, dummy=batch.num_requests % 3)


def _prepare(case: Case, pattern: int, device: str) -> Call:
    batch, params = batch_of(case), case.params
    arrays = batch_arrays(batch, pattern)
    rows = max(1, arrays.num_reqs + params["spare_rows"])
    tokens = max(1, arrays.num_actual_tokens + batch.spare_slots)
    sizes = (rows, tokens, max(1, arrays.block_table.shape[1]), batch.block_size)
    requests = [
        (f"request-{r}", arrays.block_table[r, : len(blocks)].tolist(), batch.computed_lens[r])
        for r, blocks in enumerate(batch.blocks)
    ]
    return Call(
        dict(zip(_SIZES, sizes, strict=True)) | {"device": device, "misuse": None},
        plain_written={"row state": []},
        facts=_StepFacts(
            batch=batch,
            arrays=arrays,
            requests=requests,
            scheduled=_scheduled([req_id for req_id, *_ in requests], batch),
            padding=(arrays.num_reqs, arrays.num_actual_tokens) if _is_padded(case) else (),
            stale=STALE_PATTERNS[pattern],
            dummy=min(rows, params["dummy"]),
            look=params["look"],
        ),
    )


def _scheduled(req_ids: list[str], batch: Batch) -> dict[str, int]:
    """Return the query tokens of each request, against the order of the rows in half of them."""
    scheduled = dict(zip(req_ids, batch.query_lens, strict=True))
    return dict(reversed(scheduled.items())) if len(req_ids) % 2 else scheduled


def _is_padded(case: Case) -> bool:
    """True if the step has padding, or is built with the padding that it has without."""
    batch = batch_of(case)
    return bool(batch.padded_requests or batch.padded_tokens or case.params["spare_rows"])


def _make(offered: Any, call: Call) -> Any:
    return offered(*(call[name] for name in (*_SIZES, "device")))


def _use(offered: Any, call: Call) -> Outputs:
    """Build the step of the case, after the call's misuse if there is one."""
    facts = call.facts
    batch = _make(offered, call)
    _fill_and_empty(batch, call)
    rows = [batch.add_request(*request) for request in facts.requests]
    if call["misuse"] is not None:
        _misuse(batch, call)
    metadata = batch.build(facts.scheduled, *facts.padding)
    outputs: Outputs = {"rows": rows, **_metadata_copies(metadata, facts.batch.block_size, "")}
    outputs |= {"slot_buffer": batch.slot_mapping.clone(), "req_ids": list(batch.req_ids)}
    outputs |= {"num_reqs of the batch": batch.num_reqs}
    if facts.dummy:
        dummy = batch.build_dummy(facts.dummy, _dummy_tokens(call))
        outputs |= _metadata_copies(dummy, facts.batch.block_size, _DUMMY)
        outputs[f"{_DUMMY}slot_buffer"] = batch.slot_mapping.clone()
    outputs |= _rows_of(batch)
    if facts.look:
        call.observed["left behind"] = left_behind(offered)
    return outputs


def _clocked(offered: Any, call: Call) -> Callable[[], Any]:
    """Return `build` of a batch that has its requests."""
    facts = call.facts
    batch = _make(offered, call)
    for request in facts.requests:
        batch.add_request(*request)
    return bound(batch.build, facts.scheduled, *facts.padding)


def _clocked_outputs(call: Call, metadata: Any) -> Outputs:
    """Return the metadata's fields."""
    return _metadata_copies(metadata, call.facts.batch.block_size, "")


def _earlier_state(call: Call) -> dict[str, list[int]]:
    """Return the blocks and the computed tokens of the request that each row had before."""
    rows, tokens, columns, block_size = (call[name] for name in _SIZES)
    most = columns * block_size
    computed = [min(most, max(0, tokens - row * most)) for row in range(rows)]
    return dict(zip(_STATE, ([columns] * rows, computed), strict=True))


def _fill_and_empty(batch: Any, call: Call) -> None:
    """Fill all rows, columns and tokens with requests and remove them, which leaves stale data."""
    earlier, stale = _earlier_state(call), call.facts.stale
    scheduled = {}
    for row, (blocks, tokens) in enumerate(zip(*earlier.values(), strict=True)):
        batch.add_request(("earlier", row), [stale] * blocks)
        scheduled["earlier", row] = tokens
    batch.build(scheduled)
    batch.advance(scheduled)
    for req_id in scheduled:
        batch.remove_request(req_id)
    batch.condense()


def _misuse(batch: Any, call: Call) -> None:
    """Make the call that must raise, and record the row state that changed."""
    misuse: Misuse = call["misuse"]
    misuse.prepare(batch, call.facts.scheduled)
    before = _rows_of(batch) | {"slot_mapping": batch.slot_mapping.tolist()}
    try:
        misuse.call(batch, call.facts.scheduled)
    finally:
        after = _rows_of(batch) | {"slot_mapping": batch.slot_mapping.tolist()}
        call.plain_written["row state"] += [
            name for name, value in before.items() if str(after[name]) != str(value)
        ]


def _dummy_tokens(call: Call) -> int:
    """Return as many tokens as the dummy's requests hold, but fewer than the buffer holds."""
    _, tokens, columns, block_size = (call[name] for name in _SIZES)
    return int(min(max(1, tokens - 1), call.facts.dummy * columns * block_size))


def _metadata_copies(metadata: Any, block_size: int, prefix: str) -> Outputs:
    """Return copies of the metadata's fields, without stale block-table columns (rule 0.4)."""
    outputs = metadata_outputs(metadata, prefix)
    table = f"{prefix}block_table_tensor"
    outputs[table] = live_blocks(metadata, block_size)
    outputs[f"{prefix}{_MIRRORS}"] = [
        outputs[f"{prefix}{name}"].data_ptr() != outputs[f"{prefix}{name}_cpu"].data_ptr()
        for name in ("query_start_loc", "seq_lens")
        if outputs[f"{prefix}{name}"].numel()
    ]
    return {
        name: value.clone() if isinstance(value, torch.Tensor) else value
        for name, value in outputs.items()
    }


def live_blocks(metadata: Any, block_size: int) -> Any:
    """Return the metadata's block table with 0 behind each sequence's last block."""
    table = metadata.block_table_tensor
    counts = -(-metadata.seq_lens_cpu.numpy() // block_size)
    stale = np.arange(table.shape[1]) >= counts[:, None]
    return table.masked_fill(torch.from_numpy(stale).to(table.device), 0)


def _rows_of(batch: Any) -> Outputs:
    """Return the row state of all requests."""
    count = len(batch.req_ids)
    outputs: Outputs = {name: getattr(batch, name)[:count].clone() for name in _STATE}
    blocks = [
        batch.block_table[row, :held].tolist() for row, held in enumerate(outputs["num_blocks"])
    ]
    return outputs | {"block_table": blocks, "state ids": list(batch.req_ids)}


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    for name, method in call.observed.get("left behind", ()):
        yield Violation(name, f"does not move with its row ({method})")
    yield from mirror_violations(outputs)
    arrays: BatchArrays = call.facts.arrays
    if outputs["rows"] != list(range(len(call.facts.requests))):
        yield Violation("rows", "are not the lowest free ones")
    buffer, tokens = outputs["slot_buffer"].cpu().numpy(), arrays.num_actual_tokens
    if (buffer[int(arrays.query_start_loc[-1]) :] != -1).any():
        yield Violation("slot_buffer", "gives a slot to an entry behind the last token")
    if not np.array_equal(outputs["slot_mapping"].cpu().numpy(), arrays.slot_mapping):
        yield Violation("slot_mapping", "is not block * block_size + offset by position")
    if len(outputs["slot_mapping"]) != tokens:
        yield Violation("slot_mapping", "is not as long as the padded batch")
    if not np.array_equal(outputs["seq_lens_cpu"].numpy(), arrays.seq_lens):
        yield Violation("seq_lens", "is not computed plus query tokens, 0 for padded rows")
    blocks = outputs["block_table_tensor"].cpu().numpy()
    if arrays.num_reqs and not np.array_equal(blocks, arrays.block_table_with(0)):
        yield Violation("block_table_tensor", "does not hold the requests' blocks")
    if call.facts.dummy:
        yield from _dummy_violations(call, outputs)


def _consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check a step's rows, its slots and the whole slot buffer against the added requests."""
    expected = expected_tokens(call.facts.batch)
    yield from metadata_violations(expected, outputs)
    for name in ("slot_mapping", "slot_buffer"):
        yield from slot_violations(expected, outputs[name], name)


def _dummy_violations(call: Call, outputs: Outputs) -> Iterator[Violation]:
    yield from mirror_violations(outputs, _DUMMY)
    query_lens = outputs[f"{_DUMMY}query_start_loc_cpu"].diff().tolist()
    if sum(query_lens) != _dummy_tokens(call) or len(query_lens) != call.facts.dummy:
        yield Violation(f"{_DUMMY}query_start_loc", "does not hold the dummy's requests and tokens")
    if query_lens != sorted(query_lens, reverse=True) or query_lens[0] - query_lens[-1] > 1:
        yield Violation(f"{_DUMMY}query_start_loc", "does not spread the tokens evenly")
    if outputs[f"{_DUMMY}num_computed_tokens_cpu"].any():
        yield Violation(
            f"{_DUMMY}num_computed_tokens_cpu", "counts computed tokens, which a dummy run has not"
        )
    if (outputs[f"{_DUMMY}slot_buffer"] != -1).any():
        yield Violation(f"{_DUMMY}slot_buffer", "gives a slot to a token of a dummy run")
    if outputs[f"{_DUMMY}block_table_tensor"].any():
        yield Violation(f"{_DUMMY}block_table_tensor", "holds a request's block")
    if outputs["state ids"] != outputs["req_ids"]:
        yield Violation("req_ids", "was changed by a dummy run")


def _diagnose(call: Call, place: Place, expected: Any, got: Any) -> str:
    field = place.field.removeprefix(_DUMMY)
    if field == _MIRRORS:
        return "a mirror shares the memory of its twin"
    if not (isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor)):
        return ""
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return ""
    right = expected[expected != got]
    if field in ("slot_buffer", "slot_mapping") and (right == -1).all():
        return "a valid slot where none is due"
    if field in ("seq_lens", "seq_lens_cpu") and not right.any():
        return "padded row keeps an earlier request's state"
    if field not in _STATE:
        return ""
    earlier = torch.tensor(_earlier_state(call)[field][: len(got)])
    kept = ((got == earlier) | (got == earlier + expected))[expected != got].all()
    return "a row keeps an earlier request's state" if kept else ""


persistent_batch = Operation(
    name=NAME,
    section="7",
    summary="requests kept between steps, and the metadata of a step",
    inputs=Inputs(
        params=_Params,
        problem=_problem,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_from_batch,
        faults=FAULTS,
    ),
    call=ClassCall(
        clocked=Clocked(_clocked, _clocked_outputs),
        prepare=_prepare,
        use=_use,
        outputs=lambda _call, result: result,
        methods=("add_request", "remove_request", "condense", "build"),
    ),
    contract=Contract(
        invariants=_invariants,
        consume=_consumed,
        diagnose=_diagnose,
        may_sync=lambda _: True,  # `use` reads results back between the steps
    ),
    bench=Bench(cases=lambda batch: [_case(batch)]),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (persistent_batch,)
