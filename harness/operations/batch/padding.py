"""Operation of SPEC.md section 1: add graph padding to a batch's metadata and remove it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches import later
from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.cases.batches.subclass import (
    DERIVED,
    FILLS,
    REQUEST_FIELDS,
    REQUEST_TUPLES,
    TOKEN_FIELDS,
    TOKEN_LISTS,
    subclass_of,
)
from attnproof.harness.consumer.batch import expected_tokens, metadata_violations, slot_violations
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import ClassCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.batch.padding_faults import FAULTS
from attnproof.harness.operations.shared.metadata import (
    CLASS,
    metadata_outputs,
    mirror_violations,
    prepare_metadata,
)
from attnproof.harness.operations.shared.params import Params, Tokens
from attnproof.reference.shared import CommonAttentionMetadata, CommonAttentionMetadataV32

NAME = "CommonAttentionMetadata"
PADDED, UNPADDED = "padded.", "unpadded."
_COPIED = f"{UNPADDED}copied"
_OFFSETS = ("query_start_loc", "query_start_loc_cpu")
_ROWS = ("seq_lens", "seq_lens_cpu", "num_computed_tokens_cpu", "block_table_tensor")
_OPTIONAL_ROWS = ("encoder_seq_lens", "dcp_local_seq_lens", *REQUEST_FIELDS, *REQUEST_TUPLES)
_TOKENS = ("slot_mapping", *TOKEN_FIELDS, *TOKEN_LISTS)
_ALIGNED = (*_OFFSETS, *_ROWS, *_OPTIONAL_ROWS, *_TOKENS)
_SIZES = ("num_reqs", "num_actual_tokens")
_GROWN, _ACTUAL = ("num_tokens", "num_reqs"), ("num_actual_tokens", "num_actual_reqs")
_VIEWS = frozenset(
    f"{prefix}{name}"
    for prefix in (PADDED, UNPADDED)
    for name in (*_ALIGNED, "logits_indices_padded")
)


class _Params(Params):
    more_rows: Tokens
    more_tokens: Tokens


def _case(batch: Batch, more_rows: int, more_tokens: int) -> Case:
    return Case(NAME, batch, {"more_rows": more_rows, "more_tokens": more_tokens})


def _cases() -> st.SearchStrategy[Case]:
    return st.builds(_case, batches(extras=True), st.integers(0, 3), st.integers(0, 5))


def _boundaries() -> Iterator[tuple[str, Case]]:
    decodes = make_batch([1, 1, 1], [3, 0, 9], 4)
    yield "rows and tokens", _case(decodes, 2, 2)
    yield "padded rows, no padded tokens (K11)", _case(decodes, 2, 0)
    yield "padded tokens, no padded rows", _case(decodes, 0, 5)
    yield "nothing to add", _case(decodes, 0, 0)
    counted = make_batch([3, 2], [5, 0], 4, num_logits=2)
    yield "count of sampled tokens without their indices", _case(counted, 1, 2)
    yield "idle rank", _case(make_batch([], [], 4), 3, 3)
    yield "no requests, nothing to add", _case(make_batch([], [], 4), 0, 0)
    everything: dict[str, Any] = {
        "causal": False,
        "logits_indices": (2, 4),
        "logits_padding": 2,
        "encoder_seq_lens": (7, 8),
        "dcp_local_seq_lens": (4, 1),
        "spare_columns": 2,
        "spare_slots": 3,
    }
    optional = make_batch([3, 2], [5, 0], 4, **everything)
    yield "all optional fields (K2)", _case(optional, 2, 3)
    subclassed = make_batch([3, 2], [5, 0], 4, subclassed=True, **everything)
    yield "fields of a subclass (K2)", _case(subclassed, 2, 3)
    stale = make_batch([1, 1], [6, 2], 4, spare_columns=1, spare_slots=6)
    yield "rows of earlier requests behind the batch (K13)", _case(stale, 4, 4)
    yield "padded before", _case(make_batch([2], [1], 4, padded_requests=1, padded_tokens=1), 2, 3)
    above = make_batch([2], [1], 4, query_slack=2, seq_slack=5)
    yield "bounds above the longest", _case(above, 1, 0)
    yield "idle row with a history", _case(make_batch([2, 0], [1, 7], 4), 1, 1)
    yield "strided int64", _case(make_batch([5], [2], 2, strided=True, dtype="int64"), 1, 2)
    for dtype in ("int64 offsets", "int64 lengths", "int64 computed", "int64 table"):
        yield f"{dtype} only", _case(make_batch([5], [2], 2, dtype=dtype), 1, 2)
    rows = range(300)
    many = make_batch([1 + r % 3 for r in rows], [r % 7 for r in rows], 4, subclassed=True)
    yield "many rows", _case(many, 212, 212)


def _steps(batch: Batch) -> Iterator[Case]:
    """Yield the batch padded to the next size for which engines capture graphs."""
    rows, tokens = batch.num_requests, batch.num_tokens
    yield _case(batch, -rows % 8, -tokens % 8)


def _prepare(case: Case, pattern: int, device: str) -> Call:
    call = prepare_metadata(case, pattern, device, {"metadata": ...})
    metadata, params = call.facts.metadata, case.params
    call.args |= {
        "num_tokens": metadata.num_actual_tokens + params["more_tokens"],
        "num_reqs": metadata.num_reqs + params["more_rows"],
        "num_actual_tokens": metadata.num_actual_tokens,
        "num_actual_reqs": metadata.num_reqs,
    }
    return call


def _run(offered: Any, call: Call) -> tuple[Any, Any]:
    """Return the batch in the candidate's class with padding, and with the padding removed.

    The class of an engine has no `padded`: the class of `reference.shared` pads its batch.
    """
    metadata, num_tokens, num_reqs, actual_tokens, actual_reqs = call.args.values()
    metadata_class = _class_of(offered, metadata)
    converted = _in_class(metadata_class, metadata)
    if hasattr(converted, "padded"):
        padded = converted.padded(num_tokens, num_reqs)
    else:
        padded = _in_class(metadata_class, metadata.padded(num_tokens, num_reqs))
    return padded, padded.unpadded(actual_tokens, actual_reqs)


def _class_of(offered: Any, metadata: Any) -> Any:
    """Return the candidate's class with the fields that the given metadata has."""
    if type(metadata) is CommonAttentionMetadataV32:
        return later.later_class_of(offered)
    return offered if type(metadata) is CommonAttentionMetadata else subclass_of(offered)


def _in_class(metadata_class: Any, metadata: Any) -> Any:
    names = [f.name for f in fields(metadata_class) if f.init and hasattr(metadata, f.name)]
    return metadata_class(**{name: getattr(metadata, name) for name in names})


def _outputs(call: Call, result: Any) -> Outputs:
    padded, unpadded = result
    source = call.facts.metadata
    seen = metadata_outputs(padded, PADDED, source) | metadata_outputs(unpadded, UNPADDED, source)
    return seen | {_COPIED: _copied(padded, unpadded)}


def _copied(padded: Any, unpadded: Any) -> list[str]:
    """Return the names of the tensors that removing the padding copied."""
    # A view is enough for each tensor.
    pairs = {f.name: (getattr(padded, f.name), getattr(unpadded, f.name)) for f in fields(padded)}
    return [
        name
        for name, (before, after) in pairs.items()
        if isinstance(after, torch.Tensor) and after.numel()
        if after.data_ptr() != before.data_ptr()
    ]


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    # Fields are classified by name: their declarations are part of the judged class.
    source = call.facts.metadata
    if outputs[_COPIED]:
        yield Violation(_COPIED, "holds fields that are no views")
    for prefix, names in ((PADDED, _GROWN), (UNPADDED, _ACTUAL)):
        sizes = tuple(call[name] for name in names)
        yield from mirror_violations(outputs, prefix)
        if (outputs[f"{prefix}num_actual_tokens"], outputs[f"{prefix}num_reqs"]) != sizes:
            yield Violation(f"{prefix}num_reqs", "is not the size that was asked for")
        if outputs.get(f"{prefix}{CLASS}", type(source).__name__) != type(source).__name__:
            yield Violation(f"{prefix}{CLASS}", "is not the class that was given")
        if outputs.get(f"{prefix}{DERIVED}", sum(sizes)) != sum(sizes):
            yield Violation(f"{prefix}{DERIVED}", "is derived from another batch")
        for field in fields(source):
            if field.init and field.name not in (*_SIZES, later.BOUND):
                value = outputs[f"{prefix}{field.name}"]
                live, length = _entries(field.name, call, *sizes)
                text = _violation(field.name, getattr(source, field.name), value, live, length)
                if prefix == PADDED and length > live and field.name in _ALIGNED:
                    text = text or _not_new(call, value)
                if text:
                    yield Violation(f"{prefix}{field.name}", text)


def _not_new(call: Call, value: Any) -> str:
    """Return the violation of a grown tensor that has the caller's memory, "" without one."""
    assert call.arena is not None
    own = isinstance(value, torch.Tensor) and call.arena.owner(value) is not None
    return "grows in the caller's buffer" if own else ""


def _consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check that each token reads and writes the same slots with padding and without."""
    expected = expected_tokens(call.facts.batch)
    for prefix in (PADDED, UNPADDED):
        yield from metadata_violations(expected, outputs, prefix)
        field = f"{prefix}slot_mapping"
        slots = outputs[field][: outputs[f"{prefix}num_actual_tokens"]]
        yield from slot_violations(expected, slots, field)


def _entries(name: str, call: Call, num_tokens: int, num_reqs: int) -> tuple[int, int]:
    """Return the numbers of a field's entries without padding and with padding."""
    actual_tokens, actual_reqs = (call[name] for name in _ACTUAL)
    if name in _TOKENS:
        return actual_tokens, num_tokens
    more = name in _OFFSETS
    return actual_reqs + more, num_reqs + more


def _violation(name: str, before: Any, after: Any, live: int, length: int) -> str:
    """Return the violation of a field after padding or its removal, "" without one."""
    if before is None or not (name in _ALIGNED or isinstance(before, torch.Tensor | np.ndarray)):
        kept = type(after) is type(before) and after == before
        return "" if kept else "is not what it was"
    dtypes = {getattr(value, "dtype", None) for value in (before, after)}
    if type(after) is not type(before) or len(dtypes) > 1:
        return "is of another type"
    old, new = _values(before), _values(after)
    if name not in _ALIGNED:
        return "" if np.array_equal(old, new) else "is not what it was"
    if len(new) != length:
        return "has another number of entries than the batch"
    if not np.array_equal(old[:live], new[:live]):
        return "changes what was there"
    fill = old[live - 1] if name in _OFFSETS else FILLS.get(name, 0)
    return "" if (new[live:] == fill).all() else "holds something where there is only padding"


def _values(value: Any) -> np.ndarray:
    return value.cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def _diagnose(call: Call, place: Place, expected: Any, got: Any) -> str:
    name = place.field
    if name == _COPIED:
        return "a copy where a view is enough"
    prefix, field = name.split(".")
    if field == CLASS:
        return f"{got} where the given {expected} was expected"
    if f"{prefix}." != PADDED or field not in _ALIGNED or not hasattr(got, "shape"):
        return ""
    live, _ = _entries(field, call, 0, 0)
    old, new = _values(expected), _values(got)
    if old.shape != new.shape or not np.array_equal(old[:live], new[:live]):
        return ""
    return (
        "padding that holds a request's state" if field not in _TOKENS else "padding with a token"
    )


common_attention_metadata = Operation(
    name=NAME,
    section="1",
    summary="graph padding added to every field of a batch and removed again",
    inputs=Inputs(
        params=_Params,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_steps,
        faults=FAULTS,
    ),
    call=ClassCall(prepare=_prepare, use=_run, outputs=_outputs, methods=("unpadded",)),
    contract=Contract(
        invariants=_invariants, consume=_consumed, may_alias=_VIEWS, diagnose=_diagnose
    ),
    bench=Bench(cases=lambda batch: _steps(batch) if batch.num_requests == 64 else ()),
    built_in=BuiltIn(shared="both packages accept each other's batches, so they share the class"),
)

OPERATIONS = (common_attention_metadata,)
