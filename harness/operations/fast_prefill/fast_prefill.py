"""Operation of SPEC.md section 6 that reduces a batch to its sampled tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import batches, make_batch, token_sets
from attnproof.harness.cases.batches.subclass import REQUEST_FIELDS, TOKEN_FIELDS
from attnproof.harness.cases.batches.tensors import lay_out
from attnproof.harness.consumer.batch import expected_tokens_uncached, metadata_violations
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.metadata import (
    BatchFacts,
    batch_of,
    has_logits,
    metadata_fault,
    metadata_faults,
    metadata_outputs,
    wrong_type,
)
from attnproof.reference.shared import CommonAttentionMetadata

NAME = "make_kv_sharing_fast_prefill_common_attn_metadata"
ITSELF = "itself"
"""Output field that is True if the result is the given batch itself."""
_GIVEN = "common_attn_metadata"
KEPT = frozenset(
    {
        *("seq_lens", "seq_lens_cpu", "num_computed_tokens_cpu", "block_table_tensor"),
        *("slot_mapping", "logits_indices_padded", "dcp_local_seq_lens"),
        *(*REQUEST_FIELDS, *TOKEN_FIELDS),
    }
)
_ASCENDING, _DESCENDING, _TWICE = range(3)
_SAMPLED = st.sampled_from(("last", "last", "some", "some", "all", "drawn", "none"))
_ORDER = st.sampled_from((_ASCENDING, _ASCENDING, _DESCENDING, _TWICE))


def _case(batch: Batch, order: int = _ASCENDING, wide: bool = False) -> Case:
    """Return the case of a batch.

    `order`: order in which its sampled tokens are listed; a number, so that it shrinks.
    `wide`: True if the indices are int64 for offsets of any dtype.
    """
    return Case(NAME, batch, {"order": order, "wide": wide})


def last_tokens(batch: Batch) -> Batch:
    """Return the batch with the last token of each request sampled, as engines do."""
    ends = np.cumsum(np.array(batch.query_lens, dtype=np.int64))
    sampled = tuple(int(e) - 1 for e, q in zip(ends, batch.query_lens, strict=True) if q)
    return sampling(batch, sampled)


def sampling(batch: Batch, indices: tuple[int, ...] | None) -> Batch:
    """Return the batch with these logits indices and two stale ones behind them."""
    return msgspec.structs.replace(batch, logits_indices=indices, logits_padding=2, num_logits=None)


@st.composite
def sampled_batches(draw: st.DrawFn) -> Batch:
    """Draw a batch with optional fields, most often with sampled tokens, some of them padding."""
    batch = draw(batches(max_requests=5, extras=True))
    which = draw(_SAMPLED)
    tokens = batch.num_tokens + batch.padded_tokens
    if which == "drawn":
        return batch
    if which == "last":
        return last_tokens(batch)
    indices: tuple[int, ...] | None = None
    if which == "some" and tokens:
        indices = tuple(sorted(draw(token_sets(tokens))))
    elif which == "all":
        indices = tuple(range(tokens))
    return sampling(batch, indices)


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
    yield "descending indices", _case(several, _DESCENDING)
    yield "indices given twice", _case(several, _TWICE)
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


def makes_new_batch(case: Case) -> bool:
    """True if the result is a new batch, whose lengths may be waited for."""
    batch = batch_of(case)
    return has_logits(case) and max(batch.query_lens, default=0) + batch.query_slack != 1


def lay_out_sampled(case: Case, pattern: int, device: str) -> tuple[CommonAttentionMetadata, Any]:
    """Return the case's batch as metadata, sampled tokens in the case's order, and its arena."""
    batch, order = batch_of(case), case.params.get("order", _ASCENDING)
    sampled = batch.logits_indices
    if sampled and order == _DESCENDING:
        batch = msgspec.structs.replace(batch, logits_indices=sampled[::-1])
    elif sampled and order == _TWICE:
        batch = msgspec.structs.replace(batch, logits_indices=(*sampled, *sampled))
    metadata, arena = lay_out(batch, pattern, device)
    if case.params.get("wide") and metadata.logits_indices_padded is not None:
        wide = metadata.logits_indices_padded.to(torch.int64)
        metadata = replace(metadata, logits_indices_padded=wide)
    return metadata, arena


def _prepare(case: Case, pattern: int, device: str) -> Call:
    metadata, arena = lay_out_sampled(case, pattern, device)
    facts = BatchFacts(batch=batch_of(case), metadata=metadata)
    return Call({_GIVEN: metadata}, arena=arena, facts=facts)


def reduced_outputs(given: CommonAttentionMetadata, result: Any, prefix: str = "") -> Outputs:
    """Return every field of the result, or only `ITSELF` if it is the given batch."""
    outputs: Outputs = {f"{prefix}{ITSELF}": result is given}
    if result is not given:
        outputs |= metadata_outputs(result, prefix, given)
    return outputs


def reduced_violations(
    given: CommonAttentionMetadata, outputs: Outputs, prefix: str = ""
) -> Iterator[Violation]:
    """Check mirrors, maxima, totals, the request of each sampled token, and the kept keys."""
    indices = given.logits_indices_padded
    returned = indices is None or given.max_query_len == 1
    if outputs[f"{prefix}{ITSELF}"] is not returned:
        wanted = "is a batch of its own" if returned else "is the given batch, not reduced"
        yield Violation(f"{prefix}{ITSELF}", wanted)
    if returned or indices is None or outputs[f"{prefix}{ITSELF}"]:
        return
    starts = outputs[f"{prefix}query_start_loc_cpu"].numpy().astype(np.int64)
    if outputs[f"{prefix}query_start_loc"].tolist() != starts.tolist():
        yield Violation(f"{prefix}query_start_loc", "differs from its mirror on the CPU")
    sampled = indices[: given.num_logits_indices].cpu().numpy()
    offsets = given.query_start_loc_cpu.numpy()
    owners = np.searchsorted(offsets[1:], sampled, side="right")
    counts = np.bincount(owners, minlength=given.num_reqs)[: given.num_reqs]
    if np.diff(starts).tolist() != counts.tolist():
        yield Violation(f"{prefix}query_start_loc", "does not count each request's sampled tokens")
    if outputs[f"{prefix}num_actual_tokens"] != counts.sum():
        yield Violation(f"{prefix}num_actual_tokens", "is not the number of sampled tokens")
    if outputs[f"{prefix}max_query_len"] != counts.max(initial=0):
        yield Violation(f"{prefix}max_query_len", "is not the most sampled tokens of a request")
    if outputs[f"{prefix}seq_lens_cpu"].tolist() != given.seq_lens_cpu.tolist():
        yield Violation(f"{prefix}seq_lens", "loses keys")


def reduced_consumed(
    given: CommonAttentionMetadata, batch: Batch, outputs: Outputs, prefix: str = ""
) -> Iterator[Violation]:
    """Check the visible keys of the reduced batch.

    A causal kernel takes the queries of a request as its last tokens. These see all keys
    that the last tokens see, because keys are not reduced. The layer writes no keys.
    """
    indices = given.logits_indices_padded
    if outputs[f"{prefix}{ITSELF}"] or indices is None:
        return
    sampled = indices[: given.num_logits_indices].cpu().numpy()
    ends = np.cumsum(np.array(batch.query_lens, np.int64))
    owners = np.searchsorted(ends, sampled, side="right")
    counts = np.bincount(owners, minlength=batch.num_requests)[: batch.num_requests].tolist()
    seq_lens = [q + c for q, c in zip(batch.query_lens, batch.computed_lens, strict=True)]
    computed = [length - count for length, count in zip(seq_lens, counts, strict=True)]
    if min(computed, default=0) < 0:
        return  # tokens that are listed twice give more queries than positions
    reduced = msgspec.structs.replace(
        batch, query_lens=tuple(counts), computed_lens=tuple(computed), causal=True
    )
    yield from metadata_violations(
        expected_tokens_uncached(reduced), outputs, prefix, computed=False
    )


def _diagnose(call: Call, place: Place, expected: Any, got: Any) -> str:
    given, name = call.facts.metadata, place.field
    if name == ITSELF:
        return "a copy of the batch" if expected else "the whole batch where a part was expected"
    if not isinstance(got, torch.Tensor) or not isinstance(expected, torch.Tensor):
        whole = name == "num_actual_tokens" and type(got) is int and got == given.num_actual_tokens
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
        return _diagnose_offsets(given, expected, got)
    return ""


def _diagnose_offsets(
    given: CommonAttentionMetadata, expected: torch.Tensor, got: torch.Tensor
) -> str:
    if got.tolist() == given.query_start_loc_cpu.tolist():
        return "offsets of the whole batch"
    indices = given.logits_indices_padded
    if indices is None or given.num_logits_indices is None:
        return ""
    if int(got[-1]) == int(expected[-1]):
        return "sampled token counted for another request"
    if int(got[-1]) == given.num_logits_indices:
        return "sampled tokens of graph padding counted"
    if given.num_logits_indices < int(got[-1]) <= len(indices):
        return "stale logits index counted"
    lost = 0 <= int(got[-1]) < int(expected[-1])
    return "sampled tokens lost" if lost else ""


def _logits_fault(
    change: Callable[[CommonAttentionMetadata], dict[str, Any]],
    field: str = "logits_indices_padded",
) -> Fault:
    return metadata_fault(_GIVEN, field, change, _is_reduced)


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
    """Return int64 indices; the last counted one becomes token 0 if it is cut to 32 bits."""
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
        cases=lambda: st.builds(_case, sampled_batches(), _ORDER, st.booleans()),
        boundaries=_boundaries,
        from_batch=_steps,
        faults={
            **metadata_faults(_GIVEN, logits=True),
            "more logits indices than there are": _logits_fault(
                lambda _: {"num_logits_indices": 10**6}, "num_logits_indices"
            ),
            "float logits indices": _logits_fault(
                lambda md: {"logits_indices_padded": _floats(md)}
            ),
            "logits index behind the last token": _logits_fault(_last_index(0)),
            "logits index beyond 32 bits": _logits_fault(_wide_index),
            "negative logits index": _logits_fault(_last_index(-1)),
            "metadata of another type": wrong_type(_GIVEN, "metadata"),
        },
    ),
    call=FunctionCall(
        prepare=_prepare, outputs=lambda call, result: reduced_outputs(call[_GIVEN], result)
    ),
    contract=Contract(
        invariants=lambda call, outputs: reduced_violations(call[_GIVEN], outputs),
        consume=lambda call, outputs: reduced_consumed(call[_GIVEN], call.facts.batch, outputs),
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
