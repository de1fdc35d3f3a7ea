"""Operation of SPEC.md section 8: `XFormersAttentionMetadata` and its views of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from hypothesis import strategies as st
from msgspec import Meta

from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.cases.batches.tensors import lay_out
from attnproof.harness.model.call import MISSING, Call, Facts, Outputs
from attnproof.harness.model.call_kinds import ClassCall, Clocked
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.model.operation import BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.harness.operations.shared.params import Params
from attnproof.harness.operations.xformers.metadata_views import (
    COUNTS,
    DECODES,
    PREFILLS,
    TENSORS,
    Split,
    split_of,
    view_outputs,
    view_violations,
    views_consumed,
)
from attnproof.reference.shared import CommonAttentionMetadata

NAME = "XFormersAttentionMetadata"
_MASK = "the mask"


def fields_of(metadata: CommonAttentionMetadata, split: Split, attn_bias: Any) -> dict[str, Any]:
    """Return the arguments of `XFormersAttentionMetadata` for a batch."""
    md, behind = metadata, metadata.num_actual_tokens - split.tokens
    return {
        "num_actual_tokens": md.num_actual_tokens,
        "max_query_len": md.max_query_len,
        "query_start_loc": md.query_start_loc,
        "max_seq_len": md.max_seq_len,
        "seq_lens": md.seq_lens,
        "block_table": md.block_table_tensor,
        "slot_mapping": md.slot_mapping,
        "num_prefill_tokens": behind if md.num_reqs else 0,
        "num_decode_tokens": split.tokens,
        "num_prefills": md.num_reqs - split.rows,
        "num_decodes": split.rows,
        "attn_bias": attn_bias,
    }


@dataclass(frozen=True, kw_only=True)
class _ViewFacts(Facts):
    batch: Batch
    split: Split
    arguments: dict[str, Any]
    """All arguments by name."""
    pattern: int


class _Params(Params):
    rows: Count | None
    positional: Annotated[int, Meta(ge=0, le=12)]


def _case(batch: Batch, rows: int | None = None, positional: int = 7) -> Case:
    """Return a case with `rows` before the split and `positional` arguments; see `split_of`."""
    return Case(NAME, batch, {"rows": rows, "positional": positional})


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    batch = draw(batches())
    rows = draw(st.none() | st.integers(0, batch.num_requests + batch.padded_requests))
    return _case(batch, rows, draw(st.sampled_from((7, 0, 12))))


def _boundaries() -> Iterator[tuple[str, Case]]:
    mixed = make_batch([1, 1, 4, 2], [6, 3, 0, 5], 4, order="shuffled")
    yield "decodes, then prefills", _case(mixed)
    yield "by keyword only", _case(mixed, positional=0)
    yield "by position only", _case(mixed, positional=12)
    yield "only decodes", _case(make_batch([1, 1, 1], [6, 3, 9], 4))
    yield "only prefills", _case(make_batch([4, 2], [0, 5], 4))
    yield "one decode", _case(make_batch([1], [6], 4))
    yield "one prefill behind one decode", _case(make_batch([1, 3], [2, 0], 4))
    yield "no requests", _case(make_batch([], [], 4))
    yield "no requests, padded tokens", _case(make_batch([], [], 4, padded_tokens=3))
    idle = make_batch([1, 0, 0, 3], [6, 4, 0, 5], 4)
    yield "idle rows among the decodes (K25, E23)", _case(idle)
    yield "only idle rows before the prefills", _case(make_batch([0, 0, 3], [4, 0, 5], 4))
    yield "only idle rows", _case(make_batch([0, 0], [4, 0], 4))
    graph = make_batch([1, 1], [6, 3], 4, padded_requests=2, padded_tokens=2, spare_slots=3)
    yield "decodes in a larger graph (E22)", _case(graph)
    tail = make_batch([1, 5], [6, 0], 4, padded_requests=1, padded_tokens=3, spare_slots=2)
    yield "prefill with padded tokens behind it (E22)", _case(tail)
    spec = make_batch([2, 2, 7], [6, 3, 0], 4, order="descending")
    yield "two queries a decode (K25)", _case(spec, rows=2)
    yield "all of them decodes with two queries", _case(spec, rows=3)
    yield "boundary at the first row", _case(spec, rows=0)
    wide = make_batch([1, 1, 3], [6, 3, 2], 4, strided=True, dtype="int64", spare_columns=2)
    yield "strided int64", _case(wide)
    yield "bounds above the lengths", _case(make_batch([1, 3], [6, 2], 4, query_slack=5))
    many = make_batch([1] * 200 + [30] * 4, [(7 * row) % 90 for row in range(204)], 16)
    yield "many decodes", _case(many)


def _prepare(case: Case, pattern: int, device: str) -> Call:
    batch = batch_of(case)
    metadata, arena = lay_out(batch, pattern, device)
    split = split_of(batch, case.params["rows"])
    arguments = fields_of(metadata, split, [_MASK])
    items = list(arguments.items())
    count = case.params["positional"]
    return Call(
        dict(items[:count]),
        dict(items[count:]),
        arena=arena,
        facts=_ViewFacts(batch=batch, split=split, arguments=arguments, pattern=pattern),
    )


def _run(offered: Any, call: Call) -> Outputs:
    """Make the metadata and read each of its views twice."""
    arguments = call.facts.arguments
    md = offered(*call.args.values(), **call.kwargs)
    outputs: Outputs = {name: getattr(md, name, MISSING) for name in arguments}
    outputs["attn_bias"] = "given" if md.attn_bias is arguments["attn_bias"] else md.attn_bias
    for prefix in (PREFILLS, DECODES):
        view = getattr(md, prefix)
        outputs |= view_outputs(view, prefix, arguments["attn_bias"])
        outputs[f"{prefix} is kept"] = getattr(md, prefix) is view
    return outputs


def _clocked(offered: Any, call: Call) -> Callable[[], Any]:
    """Return the construction of the metadata with one read of each view, as in an engine step."""

    def step() -> Any:
        metadata = offered(*call.args.values(), **call.kwargs)
        return metadata.prefill_metadata, metadata.decode_metadata

    return step


def _clocked_outputs(call: Call, views: Any) -> Outputs:
    """Return the fields of both views."""
    mask, (prefills, decodes) = call.facts.arguments["attn_bias"], views
    return view_outputs(prefills, PREFILLS, mask) | view_outputs(decodes, DECODES, mask)


def _outputs(_call: Call, result: Outputs) -> Outputs:
    return result


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    batch, split = call.facts.batch, call.facts.split
    for name in (PREFILLS, DECODES):
        if outputs[f"{name} is kept"] is not True:
            yield Violation(f"{name} is kept", "is not True: each access builds a new view")
    yield from view_violations(batch, split, outputs, call.facts.pattern)


def _diagnose(call: Call, place: Place, expected: Any, got: Any) -> str:
    prefix, _, name = place.field.partition(".")
    if prefix not in (PREFILLS, DECODES):
        return ""
    if name in COUNTS:
        return "a view without counts of its own" if got == 0 else ""
    if not isinstance(got, torch.Tensor) or not isinstance(expected, torch.Tensor):
        return ""
    whole = call.facts.arguments.get(name)
    if name == "query_start_loc" and got.shape == expected.shape:
        shifts = set((got - expected).tolist())
        absolute = len(shifts) == 1 and torch.isin(got, whole).all()
        return "absolute offsets in a view" if absolute else ""
    if name in TENSORS and got.shape != expected.shape and torch.isin(got, whole).all():
        return "cut with the wrong length"
    is_of_rows = name in ("seq_lens", "block_table") and got.shape == expected.shape
    others = is_of_rows and torch.isin(got[got != expected], whole).all()
    return "another row's entry" if others else ""


xformers_attention_metadata = Operation(
    name=NAME,
    section="8",
    summary="a step's metadata: decodes first, then prefills, and a view of each",
    inputs=Inputs(
        params=_Params,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=lambda batch: iter([_case(batch)]),
    ),
    call=ClassCall(
        clocked=Clocked(_clocked, _clocked_outputs),
        prepare=_prepare,
        outputs=_outputs,
        use=_run,
        methods=(PREFILLS, DECODES),
    ),
    contract=Contract(
        invariants=_invariants,
        consume=lambda call, outputs: views_consumed(call.facts.batch, call.facts.split, outputs),
        diagnose=_diagnose,
        may_alias=frozenset(TENSORS)
        | {f"{view}.{name}" for view in (PREFILLS, DECODES) for name in TENSORS},
    ),
    built_in=BuiltIn(shared="views of tensors: there is nothing to make faster"),
)

OPERATIONS = (xformers_attention_metadata,)
