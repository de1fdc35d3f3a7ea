"""The operation of a candidate's own metadata builder (SPEC.md section 7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import index
from typing import Any

import msgspec
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.cases.batches.tensors import batch_arrays, lay_out
from attnproof.harness.cases.engines.builder_config import engine_config, kv_cache_spec
from attnproof.harness.cases.variation.neighbours import neighbours_of
from attnproof.harness.cases.variation.rows import rows_of, with_rows
from attnproof.harness.model.call import Call, Free, Outputs
from attnproof.harness.model.call_kinds import ClassCall, Clocked
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.operation import BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.builders.captured_graph import copy_of, replayed
from attnproof.harness.operations.builders.usual_fields import (
    BOUNDS,
    FIELDS,
    NUMBERS,
    SPLIT,
    TENSORS,
    held_fields,
    other_tensors,
    possible_splits,
    read_tensors,
    unmapped,
)
from attnproof.harness.operations.shared.metadata import BatchFacts, batch_of
from attnproof.harness.operations.shared.params import Params
from attnproof.reference import BatchMetadataBuilder

_AGAIN, _REPLAYED = "second build.", "replayed graph."
_REPLAYED_LATER = "graph replayed after a larger batch."
"""Prefixes of fields of a second build, and of metadata that a graph was captured with."""
_MOST_ROWS, _MOST_TOKENS = 256, 8192
"""Least maxima that the engine's config has."""
_FREE = "counts"
"""Output with the numbers for which there are several right values."""


@dataclass(frozen=True, kw_only=True)
class _BuilderFacts(BatchFacts):
    device: torch.device
    others: list[Any]
    """Metadata of other steps, of as many rows and tokens."""
    lay_out_larger: Callable[[], Any]
    """Function that returns metadata of a batch of the largest size, first in a tuple."""


def builder_operation(name: str) -> Operation:
    """Return the operation of the builder class `name` of a candidate."""

    def case_of(batch: Batch) -> Case:
        # Those of an engine are int32, and so are the buffers that builders keep.
        return _ordered(Case(name, msgspec.structs.replace(batch, dtype="int32")))

    @st.composite
    def cases(draw: st.DrawFn) -> Case:
        return case_of(draw(batches(max_requests=8)))

    return Operation(
        name=name,
        section="7",
        summary="builds the metadata of its layers from that of the batch",
        inputs=Inputs(
            params=Params,
            cases=cases,
            boundaries=lambda: ((title, case_of(batch)) for title, batch in _boundaries()),
            from_batch=lambda batch: iter([case_of(batch)]),
            unreal=_unreal,
        ),
        call=ClassCall(
            prepare=_prepare,
            outputs=lambda _call, result: result,
            use=_use,
            methods=("build",),
            clocked=Clocked(_clocked, _clocked_outputs),
        ),
        contract=Contract(
            invariants=_invariants,
            diagnose=_diagnose,
            uncompared=lambda outputs: unmapped(name, outputs.get(_FREE)),
        ),
        built_in=BuiltIn(absent="it is the candidate's own; the reference returns the batch"),
    )


def _ordered(case: Case) -> Case:
    """Return the case with its rows by rising query length: the decodes of any threshold first."""
    rows = rows_of(batch_of(case))
    order = sorted(range(len(rows)), key=lambda row: rows[row][0])
    ordered = (
        None if order == [*range(len(rows))] else with_rows(case, [rows[i] for i in order], order)
    )
    return ordered or case


def _unreal(case: Case) -> str:
    queries = batch_of(case).query_lens
    # An engine orders the rows for builders with a threshold only: the others take any order.
    return "" if list(queries) == sorted(queries) else "an engine puts the decodes of a batch first"


def _boundaries() -> Iterator[tuple[str, Batch]]:
    yield "decodes, then prefills", make_batch([1, 1, 2, 4], [6, 3, 5, 0], 4, order="shuffled")
    yield "only decodes", make_batch([1] * 5, [6, 3, 9, 0, 1], 4, order="descending")
    yield "only prefills", make_batch([2, 4], [0, 5], 4)
    yield "one decode", make_batch([1], [4], 4)
    yield "drafts of two tokens", make_batch([3, 3, 3], [4, 9, 17], 4)
    yield (
        "decodes in a larger graph",
        make_batch([1, 1], [6, 3], 4, padded_requests=2, padded_tokens=2),
    )
    yield "padded tokens", make_batch([1, 5], [6, 3], 4, padded_tokens=2, spare_slots=3)
    yield "spare columns", make_batch([1, 3], [6, 3], 4, spare_columns=3)
    yield "loose maxima", make_batch([1, 3], [6, 3], 4, query_slack=3, seq_slack=7)
    yield "not causal", make_batch([2, 3], [6, 3], 4, causal=False)
    yield (
        "fields of a later engine",
        make_batch([1, 1, 3], [6, 3, 2], 4, later=True, prompt_lens=(6, 2, 9), bound_slack=2),
    )
    yield "highest block ids", make_batch([1, 9], [3, 3], 4, first=2**31 - 8)
    yield "no requests", make_batch([], [], 4)
    yield "idle rows", make_batch([0, 1, 3], [4, 6, 5], 4)
    yield "strided", make_batch([1, 3], [6, 3], 4, strided=True)
    many = [1] * 120 + [30] * 4
    yield "many requests", make_batch(many, [(7 * row) % 90 for row in range(124)], 16)
    yield "long sequences", make_batch([1, 1, 5], [8191, 131066, 4096], 16)


def _prepare(case: Case, pattern: int, device: str) -> Call:
    batch = batch_of(case)
    metadata, arena = lay_out(batch, pattern, device)
    grown = with_rows(case, [(q, c + 1) for q, c in rows_of(batch)])
    neighbours = neighbours_of(batch) + ([batch_of(grown)] if grown else [])
    others = [lay_out(other, pattern, device)[0] for other in neighbours]
    arrays = batch_arrays(batch, pattern)
    rows, tokens = max(_MOST_ROWS, arrays.num_reqs), max(_MOST_TOKENS, arrays.num_actual_tokens)
    return Call(
        {
            "kv_cache_spec": kv_cache_spec(batch.block_size),
            "layer_names": ["model.layers.0.self_attn.attn"],
            "vllm_config": engine_config(batch.block_size, rows, tokens),
            "device": torch.device(device),
            "common_attn_metadata": metadata,
        },
        arena=arena,
        facts=_BuilderFacts(
            batch=batch,
            metadata=metadata,
            device=torch.device(device),
            others=others,
            lay_out_larger=partial(lay_out, _larger(batch, rows, tokens), pattern, device),
        ),
    )


def _larger(batch: Batch, rows: int, tokens: int) -> Batch:
    """Return a batch of so many rows and tokens, with longer sequences than the batch has."""
    long = -(-tokens // rows) * 2 - 1
    prefills = (tokens - rows) // max(1, long - 1)
    queries = [1] * (rows - prefills) + [long] * prefills
    queries[-1] += tokens - sum(queries)
    longest = max((q + c for q, c in rows_of(batch)), default=0)
    return make_batch(queries, [longest + batch.block_size] + [0] * (rows - 1), batch.block_size)


def _use(offered: Any, call: Call) -> Outputs:
    """Build the batch twice, after other batches, and replay a captured graph on it twice.

    Fields that the metadata does not hold have the batch's own values.
    """
    *arguments, metadata = call.args.values()
    builder = offered(*arguments)
    facts = call.facts
    built = []
    for _ in range(2):
        for other in facts.others:  # what they leave must not be used again
            builder.build(0, other)
        built.append(_outputs(builder.build(0, metadata), builder, call))
    first, again = built
    graph = replayed(builder, call)
    later = replayed(builder, call, larger=True)
    ours = _outputs(metadata, None, call)
    outputs = ours | first
    for prefix, values, before in (
        (_AGAIN, again, first),
        (_REPLAYED, graph, first),
        (_REPLAYED_LATER, later, first | graph),
    ):
        for name, value in ours.items():
            if name == _FREE:
                continue
            # What is wrong before is a finding there, and not a second one here.
            sound = _same(before.get(name, value), value)
            outputs[f"{prefix}{name}"] = (
                values[name] if sound and name in values else copy_of(value)
            )
    return outputs


def _outputs(metadata: Any, builder: Any, call: Call) -> Outputs:
    """Return what metadata holds; without a builder the metadata is the batch itself."""
    held = held_fields(metadata)
    if not held:
        raise ValueError(
            f"{type(metadata).__name__} holds none of the usual fields ({', '.join(FIELDS)}): "
            f"name those that it has in a table [builders.NAME]"
        )
    threshold = getattr(builder, "reorder_batch_threshold", None)
    # Here, where what is no integer is an error of the candidate's.
    counts = {name: index(held[name]) for name in (*BOUNDS, *SPLIT) if name in held and builder}
    free = Free(
        **counts,
        threshold=None if threshold is None else index(threshold),
        others=other_tensors(metadata),
        absent=[name for name in TENSORS if name not in held],
    )
    outputs = read_tensors(held, call.facts) | {n: held[n] for n in NUMBERS if n in held}
    return outputs | {_FREE: free}


def _same(value: Any, expected: Any) -> bool:
    if isinstance(value, torch.Tensor) and isinstance(expected, torch.Tensor):
        return value.shape == expected.shape and torch.equal(value, expected)
    return type(value) is type(expected) and bool(value == expected)


def _clocked(offered: Any, call: Call) -> Any:
    """Return `build` of a long-lived builder."""
    *arguments, metadata = call.args.values()
    builder = offered(*arguments)
    # A builder of another interface converts its arguments before the clock starts.
    bind = getattr(builder, "bind_build", partial(partial, builder.build))
    return bind(0, metadata)


def _clocked_outputs(call: Call, built: Any) -> Outputs:
    builder = BatchMetadataBuilder(*list(call.args.values())[:-1])
    ours = _outputs(call["common_attn_metadata"], None, call)
    return ours | _outputs(built, builder, call)


def _invariants(call: Call, outputs: Outputs) -> Iterable[Violation]:
    """Check the maxima, and the counts of decodes and prefills."""
    counts = outputs[_FREE].values
    metadata = call["common_attn_metadata"]
    arrays = batch_arrays(call.facts.batch)
    longest = {
        "max_query_len": max(call.facts.batch.query_lens, default=0),
        "max_seq_len": int(arrays.seq_lens.max(initial=0)),
    }
    below = {
        "max_query_len": "is below the longest query",
        "max_seq_len": "is below the longest sequence",
    }
    for name, least in longest.items():
        value = counts.get(name, least)
        if value < least:
            yield Violation(name, below[name])
        elif value > max(least, getattr(metadata, name)):
            yield Violation(name, "is above the bound that the batch has")
    split = {name: counts[name] for name in SPLIT if name in counts}
    if not split or counts["threshold"] is None:
        return
    possible = [
        dict(zip(SPLIT, each, strict=True))
        for each in sorted(possible_splits(metadata, counts["threshold"]), reverse=True)
    ]
    if not possible or any(
        all(each[name] == value for name, value in split.items()) for each in possible
    ):
        return
    for name, value in split.items():
        values = sorted({each[name] for each in possible})
        if value not in values:
            expected = " or ".join(map(str, values))
            limit = f"with a threshold of {counts['threshold']}"
            yield Violation(
                name, f"is the count of another split, {value}, expected {expected} {limit}"
            )
            return
    yield Violation("num_decodes", f"the counts are of no split, {split}")


def _diagnose(_call: Call, place: Place, _expected: Any, _got: Any) -> str:
    if place.field.startswith(_REPLAYED_LATER):
        return "a larger batch moved the tensor that a captured graph reads"
    if place.field.startswith(_REPLAYED):
        return "a replayed graph reads what an earlier step left: the tensor is not persistent"
    if place.field.startswith(_AGAIN):
        return "another value when the batch is built again after others"
    return ""
