"""Operation of SPEC.md section 6 that reduces a batch to its sampled tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import torch
from hypothesis import strategies as st
from msgspec import Meta

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.model.call import Call
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.operations.fast_prefill.reduced_batch import (
    ASCENDING,
    DESCENDING,
    ITSELF,
    KEPT,
    REDUCED,
    TWICE,
    last_tokens,
    lay_out_sampled,
    makes_new_batch,
    reduced_consumed,
    reduced_outputs,
    reduced_violations,
    sampled_batches,
)
from attnproof.harness.operations.shared.faults import metadata_fault, metadata_faults, wrong_type
from attnproof.harness.operations.shared.metadata import BatchFacts, batch_of
from attnproof.harness.operations.shared.params import Params
from attnproof.reference.shared import CommonAttentionMetadata

NAME = "make_kv_sharing_fast_prefill_common_attn_metadata"
_METADATA = "common_attn_metadata"
_ORDER = st.sampled_from((ASCENDING, ASCENDING, DESCENDING, TWICE))


class _Params(Params):
    order: Annotated[int, Meta(ge=ASCENDING, le=TWICE)]
    wide: bool


def _case(batch: Batch, order: int = ASCENDING, wide: bool = False) -> Case:
    """Return the case of a batch.

    `order`: order of the sampled tokens, a number so that it shrinks.
    `wide`: True if the indices are int64 for offsets of any dtype.
    """
    return Case(NAME, batch, {"order": order, "wide": wide})


def _boundaries() -> Iterator[tuple[str, Case]]:
    example = make_batch([15, 5, 8], [26, 26, 32], 16, logits_indices=(14, 18, 19, 27))
    yield "SPEC example", _case(example)
    yield "dummy run without logits indices (K20)", _case(make_batch([4, 4], [0, 0], 4))
    counted = make_batch([4, 4], [0, 0], 4, num_logits=2)
    yield "count of sampled tokens without their indices", _case(counted)
    yield "decodes only", _case(make_batch([1, 1, 1], [3, 0, 8], 4, logits_indices=(0, 1, 2)))
    yield (
        "decodes under a bound of 2",
        _case(make_batch([1, 1], [3, 0], 4, logits_indices=(0, 1), query_slack=1)),
    )
    idle = make_batch([0, 3, 0, 0, 2, 0], [4, 1, 0, 9, 0, 5], 4, logits_indices=(0, 2, 3, 4))
    yield "requests without tokens", _case(idle)
    padded = {"padded_requests": 2, "padded_tokens": 3}
    yield (
        "sampled tokens in graph padding",
        _case(make_batch([3, 2], [0, 4], 4, logits_indices=(2, 4, 5, 7), **padded)),
    )
    yield (
        "nothing but graph padding",
        _case(make_batch([], [], 4, logits_indices=(0, 2), **padded)),
    )
    yield "no requests", _case(make_batch([], [], 4, logits_indices=()))
    yield (
        "nothing sampled, stale entries behind",
        _case(make_batch([3, 2], [0, 4], 4, logits_indices=(), logits_padding=4)),
    )
    yield (
        "stale entries behind the sampled",
        _case(make_batch([3, 2], [0, 4], 4, logits_indices=(2, 4), logits_padding=6)),
    )
    several = make_batch([4, 6, 5], [9, 0, 2], 4, logits_indices=(0, 3, 4, 9, 10, 12, 14))
    yield "every edge of a request", _case(several)
    yield "descending indices", _case(several, DESCENDING)
    yield "indices given twice", _case(several, TWICE)
    every = make_batch([700, 3, 1200], [0, 8, 5], 16, logits_indices=tuple(range(1903)))
    yield "every token sampled, more than a kernel tile", _case(every)
    many = make_batch([row % 3 for row in range(1500)], [row % 7 for row in range(1500)], 4)
    yield "many requests", _case(last_tokens(many))
    options: dict[str, Any] = {"strided": True, "dtype": "int64", "logits_indices": (1, 3, 5)}
    yield "strided int64", _case(make_batch([3, 4], [2, 0], 4, **options))
    yield (
        "int64 offsets, everything else narrow",
        _case(make_batch([3, 4], [2, 0], 4, dtype="int64 offsets", logits_indices=(2, 6))),
    )
    yield "int64 indices of int32 offsets", _case(several, wide=True)
    extras: dict[str, Any] = {"encoder_seq_lens": (4, 9), "dcp_local_seq_lens": (3, 2)}
    yield (
        "all optional fields, a subclass",
        _case(
            make_batch(
                [3, 4], [2, 0], 4, causal=False, subclassed=True, logits_indices=(2, 6), **extras
            )
        ),
    )


def _steps(batch: Batch) -> Iterator[Case]:
    yield _case(last_tokens(batch))


def _prepare(case: Case, pattern: int, device: str) -> Call:
    metadata, arena = lay_out_sampled(case, pattern, device)
    facts = BatchFacts(batch=batch_of(case), metadata=metadata)
    return Call({_METADATA: metadata}, arena=arena, facts=facts)


def _diagnose(call: Call, place: Place, expected: Any, got: Any) -> str:
    md, name = call.facts.metadata, place.field
    if name == ITSELF:
        return "a copy of the batch"
    if name == REDUCED:
        return "the whole batch where a part was expected"
    if not isinstance(got, torch.Tensor) or not isinstance(expected, torch.Tensor):
        whole = name == "num_actual_tokens" and type(got) is int and got == md.num_actual_tokens
        return "tokens of the whole batch" if whole else ""
    if got.dtype != expected.dtype:
        return ""
    if name == "slot_mapping" and len(got) < len(expected):
        return "slots cut to the sampled tokens"
    if not got.numel():
        return ""
    if name == "num_computed_tokens_cpu":
        return "computed tokens follow the reduced queries"
    if name in ("query_start_loc", "query_start_loc_cpu") and got.shape == expected.shape:
        return _diagnose_offsets(md, expected, got)
    return ""


def _diagnose_offsets(
    metadata: CommonAttentionMetadata, expected: torch.Tensor, got: torch.Tensor
) -> str:
    if got.tolist() == metadata.query_start_loc_cpu.tolist():
        return "offsets of the whole batch"
    indices = metadata.logits_indices_padded
    if indices is None or metadata.num_logits_indices is None:
        return ""
    if int(got[-1]) == int(expected[-1]):
        return "sampled token counted for another request"
    if int(got[-1]) == metadata.num_logits_indices:
        return "sampled tokens of graph padding counted"
    if metadata.num_logits_indices < int(got[-1]) <= len(indices):
        return "stale logits index counted"
    lost = 0 <= int(got[-1]) < int(expected[-1])
    return "sampled tokens lost" if lost else ""


def _rows_of(md: CommonAttentionMetadata) -> int:
    assert md.logits_indices_padded is not None
    return len(md.logits_indices_padded)


def _logits_fault(
    change: Callable[[CommonAttentionMetadata], dict[str, Any]],
    field: str = "logits_indices_padded",
) -> Fault:
    return metadata_fault(_METADATA, field, change, _is_reduced)


def _is_reduced(case: Case) -> bool:
    batch = batch_of(case)
    longest = max(batch.query_lens, default=0) + batch.query_slack
    return bool(batch.logits_indices) and longest != 1


def _last_index(value: int) -> Callable[[CommonAttentionMetadata], dict[str, Any]]:
    """Return a change of the last counted index: `value` behind the tokens, or negative."""

    def change(md: CommonAttentionMetadata) -> dict[str, Any]:
        assert md.logits_indices_padded is not None
        assert md.num_logits_indices is not None
        indices = md.logits_indices_padded.clone()
        last = md.num_actual_tokens + value if value >= 0 else value
        indices[md.num_logits_indices - 1] = last
        return {"logits_indices_padded": indices}

    return change


def _wide_index(md: CommonAttentionMetadata) -> dict[str, Any]:
    """Return int64 indices, of which the last counted one becomes 0 if cut to 32 bits."""
    assert md.logits_indices_padded is not None
    assert md.num_logits_indices is not None
    indices = md.logits_indices_padded.to(torch.int64, copy=True)
    indices[md.num_logits_indices - 1] = 2**32
    return {"logits_indices_padded": indices}


make_kv_sharing_fast_prefill_common_attn_metadata = Operation(
    name=NAME,
    section="6",
    summary="the batch reduced to the tokens whose logits are sampled",
    inputs=Inputs(
        params=_Params,
        cases=lambda: st.builds(_case, sampled_batches(), _ORDER, st.booleans()),
        boundaries=_boundaries,
        from_batch=_steps,
        faults={
            **metadata_faults(_METADATA, logits=True),
            "more logits indices than there are": _logits_fault(
                lambda md: {"num_logits_indices": _rows_of(md) + 1},
                "num_logits_indices",
            ),
            "float logits indices": _logits_fault(
                lambda md: {"logits_indices_padded": _floats(md)}
            ),
            "logits indices on another device": _logits_fault(
                lambda md: {"logits_indices_padded": _floats(md).int().to("meta")}
            ),
            "logits index behind the last token": _logits_fault(_last_index(0)),
            "logits index beyond 32 bits": _logits_fault(_wide_index),
            "negative logits index": _logits_fault(_last_index(-1)),
            "metadata of another type": wrong_type(_METADATA, "metadata"),
        },
    ),
    call=FunctionCall(
        prepare=_prepare, outputs=lambda call, result: reduced_outputs(call[_METADATA], result)
    ),
    contract=Contract(
        invariants=lambda call, outputs: reduced_violations(call[_METADATA], outputs),
        consume=lambda call, outputs: reduced_consumed(call[_METADATA], call.facts.batch, outputs),
        # The wrapper of an engine reads the indices of the batch that it was given, and never
        # asks whether the result is that batch.
        unread=frozenset(("logits_indices_padded", ITSELF)),
        may_alias=KEPT,
        may_sync=makes_new_batch,
        diagnose=_diagnose,
    ),
    built_in=BuiltIn(kernels=True),
)


def _floats(md: CommonAttentionMetadata) -> torch.Tensor:
    assert md.logits_indices_padded is not None
    return md.logits_indices_padded.float()


OPERATIONS = (make_kv_sharing_fast_prefill_common_attn_metadata,)
