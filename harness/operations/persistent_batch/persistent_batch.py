"""The class of SPEC.md section 7 that keeps requests between steps: `PersistentBatch`.

One case is one batch: earlier requests fill all rows and buffers and go, the batch's
requests come, one step is built. `batch_sequence` plays many steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import HIGHEST_BLOCK, batches, make_batch
from attnproof.harness.cases.batches.tensors import BatchArrays, batch_arrays
from attnproof.harness.cases.memory.arena import STALE_PATTERNS
from attnproof.harness.consumer.batch import expected_tokens, metadata_violations, slot_violations
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.operation import Breach, Call, Operation, Outputs, bound
from attnproof.harness.operations.persistent_batch.faults import FAULTS
from attnproof.harness.operations.persistent_batch.row_state import left_behind
from attnproof.harness.operations.shared.metadata import batch_of, metadata_outputs, mirror_breaches

NAME = "PersistentBatch"
_DUMMY = "dummy."
_STATE = ("num_blocks", "num_computed_tokens")
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
}
"""Of a batch that says how its tensors are laid out, what a batch of ours decides itself."""


def _case(batch: Batch, *, spare_rows: int = 0, dummy: int = 0, look: bool = False) -> Case:
    """`dummy`: requests of a dummy batch behind the step; `look`: at every per-row array."""
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
    yield "many requests", _case(make_batch([1] * 300, [7] * 300, 4, order="shuffled"), dummy=7)
    yield "more tokens than a kernel tile", _case(make_batch([1300, 1], [5, 2], 16))


def _from_batch(batch: Batch) -> Iterator[Case]:
    yield _case(batch, spare_rows=batch.num_tokens % 2, dummy=batch.num_requests % 3)


def _prepare(case: Case, pattern: int, device: str) -> Call:
    batch, params = batch_of(case), case.params
    made = batch_arrays(batch, pattern)
    rows = max(1, made.num_reqs + params["spare_rows"])
    tokens = max(1, made.num_actual_tokens + batch.spare_slots)
    sizes = [rows, tokens, max(1, made.block_table.shape[1]), batch.block_size]
    requests = [
        (f"request-{row}", made.block_table[row, : len(blocks)].tolist(), batch.computed_lens[row])
        for row, blocks in enumerate(batch.blocks)
    ]
    return Call(
        [*sizes, device],
        plain_written={"row state": []},
        facts={
            "batch": batch,
            "made": made,
            "requests": requests,
            "scheduled": {
                req_id: q for (req_id, *_), q in zip(requests, batch.query_lens, strict=True)
            },
            "padding": (made.num_reqs, made.num_actual_tokens),
            "stale": STALE_PATTERNS[pattern],
            "dummy": min(rows, params["dummy"]),
            "look": params["look"],
            "bad": None,
            "left_behind": [],
        },
    )


def _run(offered: Any, call: Call) -> Outputs:
    """Build the step of the case, or do what a fault says to a batch with its requests."""
    facts = call.facts
    batch = offered(*call.args)
    _fill_and_empty(batch, call.args, facts["stale"])
    rows = [batch.add_request(*request) for request in facts["requests"]]
    if facts["bad"] is not None:
        facts["first"](batch, facts)
        _refused(batch, call)
    metadata = batch.build(facts["scheduled"], *facts["padding"])
    seen: Outputs = {"rows": rows, **_seen(metadata, facts["batch"].block_size, "")}
    seen |= {"slot_buffer": batch.slot_mapping.clone(), "req_ids": list(batch.req_ids)}
    seen |= {"num_reqs of the batch": batch.num_reqs}
    if facts["dummy"]:
        dummy = batch.build_dummy(facts["dummy"], _dummy_tokens(call))
        seen |= _seen(dummy, facts["batch"].block_size, _DUMMY)
        seen[f"{_DUMMY}slot_buffer"] = batch.slot_mapping.clone()
    seen |= _rows_of(batch)
    if facts["look"]:
        facts["left_behind"] = left_behind(offered)
    return seen


def _clocked(offered: Any, call: Call) -> Callable[[], Any]:
    """`build` of a batch that has its requests."""
    facts = call.facts
    batch = offered(*call.args)
    for request in facts["requests"]:
        batch.add_request(*request)
    return bound(batch.build, facts["scheduled"], *facts["padding"])


def _fill_and_empty(batch: Any, sizes: list[Any], stale: int) -> None:
    """Requests in all rows, columns and tokens, which leave again: what they leave is stale."""
    rows, tokens, columns, block_size = sizes[:4]
    scheduled = {}
    for row in range(rows):
        batch.add_request(("earlier", row), [stale] * columns)
        scheduled["earlier", row] = min(tokens, columns * block_size)
        tokens -= scheduled["earlier", row]
    batch.build(scheduled)
    batch.advance(scheduled)
    for req_id in scheduled:
        batch.remove_request(req_id)
    batch.condense()


def _refused(batch: Any, call: Call) -> None:
    """Do what must raise; if that changes a row, say so in the call."""
    before = _rows_of(batch) | {"slot_mapping": batch.slot_mapping.tolist()}
    try:
        call.facts["bad"](batch, call.facts)
    finally:
        after = _rows_of(batch) | {"slot_mapping": batch.slot_mapping.tolist()}
        call.plain_written["row state"] += [
            name for name, value in before.items() if str(after[name]) != str(value)
        ]


def _dummy_tokens(call: Call) -> int:
    """As many as the dummy's requests hold, or one less than the buffer does."""
    _, tokens, columns, block_size = call.args[:4]
    return int(min(max(1, tokens - 1), call.facts["dummy"] * columns * block_size))


def _seen(metadata: Any, block_size: int, prefix: str) -> Outputs:
    """The metadata as it is now, without the block-table columns that rule 0.4 calls stale."""
    seen = metadata_outputs(metadata, prefix)
    table = f"{prefix}block_table_tensor"
    seen[table] = live_blocks(metadata, block_size)
    seen[f"{prefix}mirrors of their own"] = [
        seen[f"{prefix}{name}"].data_ptr() != seen[f"{prefix}{name}_cpu"].data_ptr()
        for name in ("query_start_loc", "seq_lens")
        if seen[f"{prefix}{name}"].numel()
    ]
    return {
        name: value.clone() if isinstance(value, torch.Tensor) else value
        for name, value in seen.items()
    }


def live_blocks(metadata: Any, block_size: int) -> Any:
    """The metadata's block table with 0 behind each sequence's last block."""
    table = metadata.block_table_tensor
    counts = -(-metadata.seq_lens_cpu.numpy() // block_size)
    stale = np.arange(table.shape[1]) >= counts[:, None]
    return table.masked_fill(torch.from_numpy(stale).to(table.device), 0)


def _rows_of(batch: Any) -> Outputs:
    """Row state: what each request has."""
    count = len(batch.req_ids)
    seen: Outputs = {name: getattr(batch, name)[:count].clone() for name in _STATE}
    blocks = [batch.block_table[row, :held].tolist() for row, held in enumerate(seen["num_blocks"])]
    return seen | {"block_table": blocks, "state ids": list(batch.req_ids)}


def _invariants(call: Call, outputs: Outputs) -> Iterator[Breach]:
    for name, method in call.facts["left_behind"]:
        yield Breach(name, f"does not move with its row ({method})")
    yield from mirror_breaches(outputs)
    made: BatchArrays = call.facts["made"]
    if outputs["rows"] != list(range(len(call.facts["requests"]))):
        yield Breach("rows", "are not the lowest free ones")
    buffer, tokens = outputs["slot_buffer"].cpu().numpy(), made.num_actual_tokens
    if (buffer[int(made.query_start_loc[-1]) :] != -1).any():
        yield Breach("slot_buffer", "gives a slot to an entry behind the last token")
    if not np.array_equal(outputs["slot_mapping"].cpu().numpy(), made.slot_mapping):
        yield Breach("slot_mapping", "is not block * block_size + offset by position")
    if len(outputs["slot_mapping"]) != tokens:
        yield Breach("slot_mapping", "is not as long as the padded batch")
    if not np.array_equal(outputs["seq_lens_cpu"].numpy(), made.seq_lens):
        yield Breach("seq_lens", "is not computed plus query tokens, 0 for padded rows")
    blocks = outputs["block_table_tensor"].cpu().numpy()
    if made.num_reqs and not np.array_equal(blocks, made.block_table_with(0)):
        yield Breach("block_table_tensor", "does not hold the requests' blocks")
    if call.facts["dummy"]:
        yield from _dummy_breaches(call, outputs)


def _consumed(call: Call, outputs: Outputs) -> Iterator[Breach]:
    """A step's rows and slots against the requests that were added; the whole slot buffer."""
    expected = expected_tokens(call.facts["batch"])
    yield from metadata_violations(expected, outputs)
    for name in ("slot_mapping", "slot_buffer"):
        yield from slot_violations(expected, outputs[name], name)


def _dummy_breaches(call: Call, outputs: Outputs) -> Iterator[Breach]:
    yield from mirror_breaches(outputs, _DUMMY)
    query_lens = outputs[f"{_DUMMY}query_start_loc_cpu"].diff().tolist()
    if sum(query_lens) != _dummy_tokens(call) or len(query_lens) != call.facts["dummy"]:
        yield Breach(f"{_DUMMY}query_start_loc", "does not hold the dummy's requests and tokens")
    if query_lens != sorted(query_lens, reverse=True) or query_lens[0] - query_lens[-1] > 1:
        yield Breach(f"{_DUMMY}query_start_loc", "does not spread the tokens evenly")
    if outputs[f"{_DUMMY}num_computed_tokens_cpu"].any():
        yield Breach(f"{_DUMMY}num_computed_tokens_cpu", "counts computed tokens of nobody")
    if (outputs[f"{_DUMMY}slot_buffer"] != -1).any():
        yield Breach(f"{_DUMMY}slot_buffer", "gives a slot to nobody's token")
    if outputs[f"{_DUMMY}block_table_tensor"].any():
        yield Breach(f"{_DUMMY}block_table_tensor", "holds somebody's block")
    if outputs["state ids"] != outputs["req_ids"]:
        yield Breach("req_ids", "was changed by a dummy run")


def _diagnose(_call: Call, field: str, expected: Any, got: Any) -> str:
    if field.endswith("mirrors of their own"):
        return "a mirror shares the memory of its twin"
    if not (isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor)):
        return ""
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return ""
    right = expected[expected != got]
    if field.endswith(("slot_buffer", "slot_mapping")) and (right == -1).all():
        return "a valid slot where none is due"
    if field.endswith(("seq_lens", "seq_lens_cpu")) and not right.any():
        return "padded row keeps an earlier request's state"
    if field in _STATE and (expected <= got).all():
        return "a row keeps an earlier request's state"
    return ""


persistent_batch = Operation(
    name=NAME,
    section="7",
    summary="requests kept between steps, and the metadata of a step",
    cases=_cases,
    boundaries=_boundaries,
    from_batch=_from_batch,
    timed=lambda batch: [_case(batch)],
    clocked=_clocked,
    prepare=_prepare,
    run=_run,
    outputs=lambda _call, seen: seen,
    invariants=_invariants,
    consume=_consumed,
    diagnose=_diagnose,
    kernels=True,
    syncs=lambda _: True,  # what is seen is read back here, between the steps
    methods=("add_request", "remove_request", "condense", "build"),
    faults=FAULTS,
)

OPERATIONS = (persistent_batch,)
