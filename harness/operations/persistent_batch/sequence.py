"""Sequences of SPEC.md section 7 (oracle 7): a persistent batch through an engine's steps.

Bug classes: rows that are views of each other when they are swapped (K12), padded rows
that hold earlier requests' state (K13), a slot buffer that starts at a valid slot (K17),
a shorter request in a longer row (K18). Each needs more than one call.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from attnproof.harness.cases.machine import Machine
from attnproof.harness.model.call import Outputs
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Operation
from attnproof.harness.operations.persistent_batch.consumer import steps_consumed
from attnproof.harness.operations.persistent_batch.diagnosis import diagnose_batch
from attnproof.harness.operations.persistent_batch.persistent_batch import live_blocks
from attnproof.harness.operations.persistent_batch.sequence_cases import (
    NAME,
    SIZES,
    boundaries,
    from_batch,
)
from attnproof.harness.operations.persistent_batch.step_types import BATCH_PARAMS
from attnproof.harness.operations.persistent_batch.steps import script
from attnproof.harness.operations.shared.metadata import metadata_outputs
from attnproof.harness.operations.shared.sequence import (
    SEQUENCE_NOT_TIMED,
    SequenceCall,
    moved_tensors,
    sequence_inputs,
)

_BUFFERS = ("query_start_loc", "seq_lens", "block_table_tensor", "slot_mapping")
_SMALL = st.integers(0, 3)
_CACHED = st.integers(0, 12)
_LENS = st.lists(st.sampled_from((1, 2, 0, 5, 9)), min_size=1, max_size=4)


class _Machine(Machine):
    operation = NAME

    def __init__(self) -> None:
        super().__init__()
        self.requests = self.holes = 0
        self.built = False

    @initialize(
        reqs=st.sampled_from((4, 2, 3, 6)),
        tokens=st.sampled_from((24, 8, 40)),
        blocks=st.sampled_from((3, 1, 2, 5)),
        block_size=st.sampled_from((4, 1, 2, 16, 6)),
        waiting=st.lists(st.tuples(_SMALL, _CACHED), max_size=4),
    )
    def start(
        self, reqs: int, tokens: int, blocks: int, block_size: int, waiting: list[tuple[int, int]]
    ) -> None:
        """Choose the sizes of the buffers, and add requests."""
        self.params = dict(zip(SIZES, (reqs, tokens, blocks, block_size), strict=True))
        for held, cached in waiting:
            self._add(held, cached)

    @rule(blocks=_SMALL, tokens=_CACHED)
    def add(self, blocks: int, tokens: int) -> None:
        """Add a request, some of its tokens cached."""
        self._add(blocks, tokens)

    @precondition(lambda self: self.requests)
    @rule(which=_SMALL, blocks=_SMALL)
    def append(self, which: int, blocks: int) -> None:
        """Append blocks to a request."""
        self.step("append", which=which, blocks=blocks)

    @precondition(lambda self: self.requests)
    @rule(which=st.lists(_SMALL, min_size=1, max_size=4))
    def remove(self, which: list[int]) -> None:
        """Remove requests: their rows become holes, their blocks free."""
        for request in which[: self.requests]:
            self._remove(request)

    @precondition(lambda self: self.requests)
    @rule(which=_SMALL, blocks=_SMALL, tokens=_CACHED)
    def preempt(self, which: int, blocks: int, tokens: int) -> None:
        """Remove a request and add it again, with other blocks."""
        self._remove(which)
        self.requests += 1
        self.holes -= 1
        self.step("resume", blocks=blocks, tokens=tokens)

    @precondition(lambda self: self.holes)
    @rule()
    def condense(self) -> None:
        """Close the holes with the last requests."""
        self.holes = 0
        self.step("condense")

    @precondition(lambda self: self.requests > 1)
    @rule(i=_SMALL, j=_SMALL)
    def swap(self, i: int, j: int) -> None:
        """Swap two rows."""
        self.step("swap", i=i, j=j)

    @rule(lens=_LENS, pad_reqs=st.just(0) | _SMALL, pad_tokens=_SMALL)
    def build(self, lens: list[int], pad_reqs: int, pad_tokens: int) -> None:
        """Build a step of all requests, with or without graph padding."""
        self._close_holes()
        self.built = True
        self.step("build", lens=lens, pad_reqs=pad_reqs, pad_tokens=pad_reqs and pad_tokens)

    @precondition(lambda self: self.requests > 1)
    @rule(lens=_LENS, threshold=_SMALL)
    def reorder(self, lens: list[int], threshold: int) -> None:
        """Move decodes to the front, build the step, count decodes and prefills."""
        self._close_holes()
        self.built = True
        self.step("reorder", lens=lens, threshold=threshold)
        self.step("build", lens=lens, pad_reqs=0, pad_tokens=0)
        self.step("split", threshold=threshold)

    @precondition(lambda self: self.requests)
    @rule(lens=_LENS, leaves=st.none() | _SMALL)
    def serve(self, lens: list[int], leaves: int | None) -> None:
        """Build a step and advance; a request may be removed in between."""
        self._close_holes()
        self.built = True
        self.step("build", lens=lens, pad_reqs=0, pad_tokens=0)
        if leaves is not None:
            self._remove(leaves)
        self.step("advance")

    @precondition(lambda self: self.built)
    @rule()
    def advance(self) -> None:
        """Advance: the tokens of the last step are cached."""
        self.step("advance")

    @precondition(lambda self: self.requests)
    @rule(tokens=_LENS)
    def reject(self, tokens: list[int]) -> None:
        """Reject drafts: computed tokens are taken back."""
        self.step("reject", tokens=tokens)

    @rule(reqs=_SMALL, tokens=st.integers(0, 12))
    def dummy(self, reqs: int, tokens: int) -> None:
        """Build the dummy batch of an idle rank."""
        self.built = True
        self.step("dummy", reqs=reqs, tokens=tokens)

    @precondition(lambda self: self.built)
    @rule()
    def slots(self) -> None:
        """Compute the slots again, into a buffer that is kept."""
        self.step("slots")

    @precondition(lambda self: self.built)
    @rule(at=st.integers(0, 12))
    def cut(self, at: int) -> None:
        """Cut the batch into two micro-batches."""
        self.step("cut", at=at)

    @precondition(lambda self: self.built)
    @rule(blocks=_SMALL)
    def local(self, blocks: int) -> None:
        """Make virtual batches for chunked local attention."""
        self.step("local", blocks=blocks)

    @rule(kind=st.integers(0, 23))
    def bad(self, kind: int) -> None:
        """Pass malformed input."""
        self.step("bad", kind=kind)

    def _add(self, blocks: int, tokens: int) -> None:
        self.requests = min(self.requests + 1, self.params["max_num_reqs"])
        self.holes = max(0, self.holes - 1)
        self.step("add", blocks=blocks, tokens=tokens)

    def _remove(self, which: int) -> None:
        self.requests -= 1
        self.holes += 1
        self.step("remove", which=which)

    def _close_holes(self) -> None:
        if self.holes:
            self.condense()


def _observe(names: dict[str, Any]) -> Outputs:
    """Return the rows, the last batch, all of the slot buffers, and the results of the step.

    Micro-batches and virtual batches are observed once: their tensors may be views of
    step buffers, which the next build writes.
    """
    batch, metadata = names["batch"], names["metadata"]
    outputs: Outputs = {
        "req_ids": list(batch.req_ids),
        "requests": batch.num_reqs,
        "blocks": [_blocks(batch, row) for row in range(len(batch.req_ids))],
        "num_computed_tokens": [
            None if req_id is None else int(batch.num_computed_tokens[row])
            for row, req_id in enumerate(batch.req_ids)
        ],
        **{name: names[name] for name in ("row", "moved", "counts", "slots")},
        "slot_buffer": batch.slot_mapping,
    }
    if metadata is not None:
        outputs |= _metadata(metadata, batch.block_size, "")
        buffers = {name: getattr(metadata, name) for name in _BUFFERS}
        outputs["moved buffers"] = moved_tensors(names, buffers)
    for index, child in enumerate(names.get("children") or ()):
        outputs |= _metadata(child, batch.block_size, f"micro-batch {index}: ")
    if names.get("virtual") is not None:
        outputs |= _metadata(names["virtual"], batch.block_size, "virtual: ")
    names["children"] = names["virtual"] = None
    return outputs


def _blocks(batch: Any, row: int) -> list[int] | None:
    if batch.req_ids[row] is None:
        return None
    blocks: list[int] = batch.block_table[row, : int(batch.num_blocks[row])].tolist()
    return blocks


def _metadata(metadata: Any, block_size: int, prefix: str) -> Outputs:
    outputs = metadata_outputs(metadata, prefix)
    outputs[f"{prefix}block_table_tensor"] = live_blocks(metadata, block_size)
    return outputs


batch_sequence = Operation(
    name=NAME,
    section="7",
    summary="a persistent batch through the steps of an engine",
    inputs=sequence_inputs(
        params=BATCH_PARAMS,
        machine=_Machine,
        boundaries=boundaries,
        from_batch=from_batch,
    ),
    call=SequenceCall(
        parts=(
            "PersistentBatch",
            "build_slot_mapping",
            "make_local_attention_virtual_batches",
            "split_attn_metadata",
            "split_decodes_and_prefills",
        ),
        # Any order of the rows inside its regions is right, and the steps are made for one.
        reference_only=("reorder_batch_to_split_decodes_and_prefills",),
        write=script,
        observe=_observe,
    ),
    contract=Contract(diagnose=diagnose_batch, consume=steps_consumed),
    bench=Bench(never=SEQUENCE_NOT_TIMED),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (batch_sequence,)
