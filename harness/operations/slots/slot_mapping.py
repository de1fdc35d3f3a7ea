"""Operation of SPEC.md section 5 on a batch: `build_slot_mapping`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import HIGHEST_BLOCK, make_batch
from attnproof.harness.cases.batches.tensors import batch_arrays
from attnproof.harness.consumer.batch import expected_tokens, int64_array, slot_violations
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn
from attnproof.harness.model.relations import Joined, Relations
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.arguments import Values
from attnproof.harness.operations.derived.derive import Example, Step, derive_built_in, one_of
from attnproof.harness.operations.derived.params import Parameter
from attnproof.harness.operations.shared.metadata import token_positions
from attnproof.harness.operations.shared.params import Few, Lengths
from attnproof.reference import build_slot_mapping as reference

_BLOCK_BITS = 40
"""Bits of the block id in a number that combines row and block id."""
PLAIN = {"with_num_padded_tokens": False, "with_start_idx": False, "with_out": False}
"""Parameters of a call without optional arguments."""
PADDED, WINDOW, BUFFER = ({**PLAIN, name: True} for name in PLAIN)
IN_BUFFER = BUFFER | {"with_num_padded_tokens": True}


def _examples() -> Iterator[Example]:
    mixed = make_batch([1, 5, 0, 3], [7, 0, 4, 9], 4, spare_columns=2, order="descending")
    yield "buffer with a stale tail (K17)", mixed, BUFFER | {"spare": 6}
    yield "padded length", mixed, PADDED | {"num_padded_tokens": 4}
    decodes = make_batch([1, 1, 1], [6, 3, 11], 4)
    yield "padded decodes", decodes, PADDED | {"num_padded_tokens": 5}
    yield "no requests, padded", make_batch([], [], 4), PADDED | {"num_padded_tokens": 3}
    yield "padded length in a longer buffer", mixed, IN_BUFFER | {"num_padded_tokens": 4}
    yield "window", mixed, WINDOW | {"start_idx": [0, 3, 0, 11]}
    yield "sequence longer than its row's columns (K14)", mixed, PLAIN | {"columns": 1}
    longer = make_batch([1, 1], [0, 30], 4, spare_columns=3)
    yield "shorter request in a longer row (K18)", longer, PLAIN
    rows = make_batch([], [], 4, padded_requests=3)
    yield "only padded rows", rows, PADDED | {"num_padded_tokens": 3}
    for size in (1, 16, 256):
        highest = make_batch([3, 1], [size - 1, 0], size, first=HIGHEST_BLOCK - 4)
        yield f"highest block ids, block size {size} (K15)", highest, PLAIN
    long = make_batch([4000], [3], 16)
    yield "more tokens than a kernel tile (K19)", long, PLAIN
    yield "more tokens than a kernel tile, in a buffer (K19)", long, IN_BUFFER
    short = [(5 * row) % 4 for row in range(1500)], [row % 7 for row in range(1500)]
    yield "many short requests over several tiles", make_batch(*short, 4), PLAIN
    yield "window far into a long prompt", long, WINDOW | {"start_idx": [2000]}


def steps(batch: Batch) -> Iterator[Step]:
    """Yield the batch with a buffer."""
    yield batch, BUFFER | {"spare": batch.num_tokens % 7}


def _table(values: Values) -> np.ndarray:
    return values.batch.block_table_with(values.stale)[:, : values.params["columns"]]


def buffer(values: Values) -> np.ndarray:
    """Return a buffer for the slots, with stale entries."""
    entries = max(values.sizes["T"], values["num_padded_tokens"] or 0)
    return np.full(entries + values.params["spare"], values.stale, np.int64)


def unwritten(call: Call) -> np.ndarray:
    """Return (T,) bool, True for tokens before their request's `start_idx`."""
    expected, first = expected_tokens(call.facts.batch), call.kwargs["start_idx"]
    if first is None:
        return np.zeros(len(expected.positions), bool)
    before: np.ndarray = expected.positions < int64_array(first)[expected.requests]
    return before


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    result, batch, out = outputs["result"], call.facts.batch, call["out"]
    if not isinstance(result, torch.Tensor) or result.ndim != 1:
        return
    if out is not None and result.numel() and result.data_ptr() != out.data_ptr():
        yield Violation("result", "is not a view of the buffer that was given")
    slots, tokens = result.cpu().numpy(), call.facts.tokens
    if len(slots) < tokens:
        yield Violation("result", "has fewer entries than there are tokens")
        return
    if (slots[tokens:] != -1).any():
        yield Violation("result", "gives a slot to an entry behind the last token")
    made = batch_arrays(batch)
    live = slots[:tokens] >= 0
    positions = token_positions(made.query_start_loc, made.num_computed_tokens)
    if (slots[:tokens][live] % batch.block_size != positions[live] % batch.block_size).any():
        yield Violation("result", "puts a token at another offset of its block")
    kept = slots[:tokens][live]
    if not batch_shares_blocks(batch) and len(np.unique(kept)) != len(kept):
        yield Violation("result", "gives two tokens the same slot")
    owners = np.repeat(np.arange(made.num_reqs), np.diff(made.query_start_loc))[live]
    written = owners << _BLOCK_BITS | kept // batch.block_size
    if not np.isin(written, _owned(batch)).all():
        yield Violation("result", "writes into a block that its request does not own")


def _consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check that each token is written to the slot that the block table gives it."""
    expected, width = expected_tokens(call.facts.batch), call["block_table"].shape[1]
    none = unwritten(call) | (expected.positions // expected.block_size >= width)
    for field in ("result", "out"):
        if outputs.get(field) is not None:
            yield from slot_violations(expected, outputs[field], field, unwritten=none)


def _owned(batch: Batch) -> np.ndarray:
    """Return (B,) int64: row and block id, combined in one number, of every live block."""
    counts = [len(blocks) for blocks in batch.blocks]
    rows = np.repeat(np.arange(len(counts)), counts)
    return rows << _BLOCK_BITS | np.array([b for row in batch.blocks for b in row], dtype=np.int64)


def batch_shares_blocks(batch: Batch) -> bool:
    """True if two requests have a block in common."""
    blocks = [block for row in batch.blocks for block in row]
    return len(set(blocks)) != len(blocks)


def unreal(case: Case) -> str:
    """Return why no engine makes the case, "" if one may."""
    return "a block table of an engine has a column" if case.params["columns"] == 0 else ""


def may_sync(case: Case) -> bool:
    """True if nothing says the length of the result."""
    return not (case.params["with_num_padded_tokens"] or case.params["with_out"])


def _has_tokens(case: Case) -> bool:
    return case.num_tokens > 0


PARAMETERS = {
    "start_idx": one_of(Lengths, [0], [3, 0, 11], [30, 2], [1, 17]),
    "spare": one_of(Few, 0, 3, 5),
    "columns": Parameter(Count | None, (None, 0, 1), st.none() | st.none() | st.integers(0, 2)),
}

build_slot_mapping = derive_built_in(
    reference,
    section="5",
    summary="the cache slot of every token of a batch",
    without=("cp_size", "cp_rank", "cp_interleave"),
    values={"block_table": _table, "out": buffer},
    parameters=PARAMETERS,
    examples=_examples,
    steps=steps,
    timed=lambda batch: [(batch, PLAIN)],
    unreal=unreal,
    faults={
        "no offsets": Fault("query_start_loc", lambda offsets: offsets[:0]),
        "offsets that fall": Fault(
            "query_start_loc",
            lambda offsets: torch.cat([offsets[:-1], -1 - offsets[:1]]),
            applies=_has_tokens,
            cpu_only=True,
        ),
        "padded length below the tokens": Fault(
            "num_padded_tokens", lambda _: 0, applies=_has_tokens, cpu_only=True
        ),
        "short buffer": Fault(
            "out", lambda _: torch.zeros(0).long(), applies=_has_tokens, cpu_only=True
        ),
    },
    relations=Relations(
        joined={"result": Joined.TOKENS},
        alone={"with_num_padded_tokens": False, "with_out": False},
        per_request=frozenset({"start_idx"}),
        slots=frozenset({"result", "out"}),
    ),
    invariants=_invariants,
    consume=_consumed,
    may_sync=may_sync,
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (build_slot_mapping,)
