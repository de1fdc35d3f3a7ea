"""Operation of SPEC.md section 4: virtual batches for chunked local attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.cases.batches.subclass import TOKEN_FIELDS
from attnproof.harness.cases.batches.tensors import batch_arrays
from attnproof.harness.consumer.batch import expected_tokens, metadata_violations, slot_violations
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.relations import Joined, Relations
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.faults import faults_of
from attnproof.harness.operations.shared.faults import metadata_fault, wrong_value
from attnproof.harness.operations.shared.metadata import (
    batch_of,
    diagnose_metadata,
    metadata_outputs,
    mirror_violations,
    prepare_metadata,
    token_positions,
)
from attnproof.harness.operations.shared.params import Params, Positive, size_problem
from attnproof.reference import make_local_attention_virtual_batches as reference

_BLOCKS_A_CHUNK = st.sampled_from((1, 2, 3, 4, 8))
_TIMED_CHUNK = 8192
"""Chunk of Llama 4 in tokens, a multiple of the block sizes of engines."""
NAME = "make_local_attention_virtual_batches"


class _Params(Params):
    attn_chunk_size: Positive


def _problem(case: Case) -> str:
    """Return why the batch cannot be divided into chunks: SPEC.md section 4."""
    batch, chunk = batch_of(case), case.params["attn_chunk_size"]
    if chunk % batch.block_size:
        return f"attn_chunk_size: {chunk}, no multiple of the block size {batch.block_size}"
    if batch.dcp_local_seq_lens is not None:
        return "batch.dcp_local_seq_lens: a virtual batch has no rank shares"
    virtual = 2 * (batch.num_requests + batch.padded_requests) + batch.num_tokens // chunk
    # Engines make several arrays of int64 indices of this size.
    return size_problem("attn_chunk_size", 8 * virtual * (chunk // batch.block_size))


def _case(batch: Batch, chunk: int) -> Case:
    return Case(NAME, batch, {"attn_chunk_size": chunk})


def _derivable(batch: Batch) -> Batch:
    return msgspec.structs.replace(batch, dcp_local_seq_lens=None)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    batch = draw(batches(max_requests=5, extras=True))
    return _case(_derivable(batch), batch.block_size * draw(_BLOCKS_A_CHUNK))


def _boundaries() -> Iterator[tuple[str, Case]]:
    yield "SPEC example", _case(make_batch([4, 10, 5], [2, 7, 4], 2), 4)
    for edge in (-1, 0, 1):
        yield f"query ends at the chunk {edge:+d}", _case(make_batch([8 + edge], [0], 2), 8)
        yield f"query starts at the chunk {edge:+d}", _case(make_batch([5], [8 + edge], 2), 8)
        yield f"decode at the chunk {edge:+d}", _case(make_batch([1], [7 + edge], 2), 8)
    yield "8193 tokens in chunks of 8192 (K5)", _case(make_batch([8193], [0], 16), 8192)
    yield "table narrower than a chunk (K6)", _case(make_batch([3], [2], 2), 64)
    empty = make_batch([3], [2], 2, padded_requests=2, spare_columns=3)
    yield "row without query or sequence (K7)", _case(empty, 4)
    yield "row without query, with a sequence", _case(make_batch([0, 2, 0], [9, 3, 8], 2), 4)
    counted = make_batch([6, 3], [3, 0], 2, num_logits=2)
    yield "count of sampled tokens without their indices", _case(counted, 4)
    yield "no requests", _case(make_batch([], [], 2), 4)
    yield "only padded rows", _case(make_batch([], [], 2, padded_requests=2), 4)
    yield "chunk of one block", _case(make_batch([7], [4], 4), 4)
    yield "chunk and block of one token", _case(make_batch([3, 2], [1, 0], 1), 1)
    yield "block size 256", _case(make_batch([300, 1], [500, 256], 256), 512)
    yield "highest block ids", _case(make_batch([9], [3], 4, first=2**31 - 3), 8)
    yield "strided int64", _case(make_batch([6, 5], [5, 0], 2, strided=True, dtype="int64"), 4)
    yield "int64 table", _case(make_batch([6, 5], [5, 0], 2, dtype="int64 table"), 4)
    optional = make_batch([6, 3], [3, 0], 2, logits_indices=(5, 8), encoder_seq_lens=(4, 9))
    yield "sampled tokens and encoder lengths", _case(optional, 4)
    later_batch = make_batch([6, 0], [3, 0], 2, later=True, prompt_lens=(9, 0))
    yield "a later engine's batch with an empty row (K7)", _case(later_batch, 4)
    subclassed = make_batch([6, 1], [3, 4], 2, padded_requests=1, subclassed=True)
    yield "fields of a subclass (K2)", _case(subclassed, 4)
    yield "not causal before", _case(make_batch([6], [3], 2, causal=False), 4)
    yield "more virtual batches than a kernel tile", _case(make_batch([2600], [1], 1), 2)
    rows = range(400)
    many = make_batch([1 + r % 3 for r in rows], [r % 7 for r in rows], 2, order="shuffled")
    yield "many requests", _case(many, 4)


def _steps(batch: Batch) -> Iterator[Case]:
    longest = max(map(len, batch.blocks), default=0)
    blocks = 512 if longest > 512 else max(1, longest // 3)
    yield _case(_derivable(batch), batch.block_size * blocks)


def _prepare(case: Case, pattern: int, device: str) -> Call:
    arguments = {
        "attn_chunk_size": case.params["attn_chunk_size"],
        "common_attn_metadata": ...,
        "block_size": batch_of(case).block_size,
    }
    return prepare_metadata(case, pattern, device, arguments)


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    wrong = list(mirror_violations(outputs))
    yield from wrong
    offsets, seq_lens = outputs["query_start_loc_cpu"], outputs["seq_lens_cpu"]
    if wrong or not isinstance(offsets, torch.Tensor) or not isinstance(seq_lens, torch.Tensor):
        return
    parent, chunk = batch_arrays(call.facts.batch), call["attn_chunk_size"]
    if int(offsets[-1]) != int(parent.query_start_loc[-1]):
        yield Violation("query_start_loc", "does not keep the number of query tokens")
        return
    if seq_lens.numel() and not 0 <= int(seq_lens.min()) <= int(seq_lens.max()) <= chunk:
        yield Violation("seq_lens", "is not between 0 and the chunk")
    positions = token_positions(parent.query_start_loc, parent.num_computed_tokens) % chunk
    computed = outputs["num_computed_tokens_cpu"].numpy()
    if not np.array_equal(token_positions(offsets.numpy(), computed), positions):
        yield Violation("num_computed_tokens_cpu", "moves tokens within their chunk")


def _consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check that each token reads the keys of its chunk up to itself, in its request's blocks."""
    expected = expected_tokens(call.facts.batch)
    yield from metadata_violations(expected, outputs, chunk=call["attn_chunk_size"])
    slots = outputs["slot_mapping"][: outputs["num_actual_tokens"]]
    yield from slot_violations(expected, slots, "slot_mapping")


def _shares(md: Any) -> dict[str, Any]:
    zeros = torch.zeros(md.num_reqs, dtype=torch.int32, device=md.seq_lens.device)
    return {"dcp_local_seq_lens": zeros}


def _has_requests(case: Case) -> bool:
    return case.num_requests > 0


make_local_attention_virtual_batches = Operation(
    name=NAME,
    section="4",
    summary="one virtual request for each chunk that a query touches",
    inputs=Inputs(
        params=_Params,
        problem=_problem,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_steps,
        faults=faults_of(reference, _prepare)
        | {
            "block size left at its default of 0": wrong_value("block_size", 0),
            "chunk that blocks do not divide": wrong_value(
                "attn_chunk_size", 257 * 3, lambda case: batch_of(case).block_size not in (1, 3)
            ),
            "chunk below the block size": wrong_value(
                "attn_chunk_size", 1, lambda case: batch_of(case).block_size > 1
            ),
            "block table without columns": metadata_fault(
                "common_attn_metadata",
                "block_table_tensor",
                lambda md: {"block_table_tensor": md.block_table_tensor[:, :0]},
                _has_requests,
            ),
            "share of a rank": metadata_fault(
                "common_attn_metadata", "dcp_local_seq_lens", _shares, _has_requests
            ),
        },
    ),
    call=FunctionCall(
        prepare=_prepare,
        outputs=lambda call, result: metadata_outputs(result, original=call.facts.metadata),
    ),
    contract=Contract(
        relations=Relations(
            joined={
                "query_start_loc": Joined.OFFSETS,
                "query_start_loc_cpu": Joined.OFFSETS,
                "seq_lens": Joined.ENTRIES,
                "seq_lens_cpu": Joined.ENTRIES,
                "num_computed_tokens_cpu": Joined.ENTRIES,
                "block_table_tensor": Joined.ENTRIES,
                "slot_mapping": Joined.TOKENS,
            },
            blocks=frozenset({"block_table_tensor"}),
            slots=frozenset({"slot_mapping"}),
        ),
        invariants=_invariants,
        consume=_consumed,
        # No layer of local attention samples logits or attends to an encoder.
        unread=frozenset(("logits_indices_padded", "num_logits_indices", "encoder_seq_lens")),
        diagnose=diagnose_metadata,
        may_alias=frozenset({"slot_mapping", "logits_indices_padded", *TOKEN_FIELDS}),
    ),
    bench=Bench(cases=lambda batch: [_case(_derivable(batch), _TIMED_CHUNK)]),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (make_local_attention_virtual_batches,)
