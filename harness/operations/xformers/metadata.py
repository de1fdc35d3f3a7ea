"""Operation of SPEC.md section 8: `XFormersAttentionMetadata` and its views of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.cases.batches.tensors import batch_arrays, lay_out
from attnproof.harness.consumer.batch import expected_tokens
from attnproof.harness.consumer.parts import view_violations as part_violations
from attnproof.harness.model.call import MISSING, Call, Facts, Outputs
from attnproof.harness.model.call_kinds import ClassCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.operation import BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.reference.shared import CommonAttentionMetadata

NAME = "XFormersAttentionMetadata"
TENSORS = ("query_start_loc", "seq_lens", "block_table", "slot_mapping")
COUNTS = (
    "num_actual_tokens",
    "num_prefill_tokens",
    "num_decode_tokens",
    "num_prefills",
    "num_decodes",
)
BOUNDS = ("max_query_len", "max_seq_len")
PREFILLS, DECODES = "prefill_metadata", "decode_metadata"
_MASK = "the mask"


class Bounds:
    """Bounds of a view: they need not be tight, so they are judged but not compared (section 8)."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bounds)

    def __hash__(self) -> int:
        return hash(Bounds)

    def __repr__(self) -> str:
        return f"Bounds({self.values})"


class Split(NamedTuple):
    """Number of rows and tokens of a batch's decodes."""

    rows: int
    tokens: int


def split_of(batch: Batch, rows: int | None = None) -> Split:
    """Return the split behind `rows` requests, by default behind those with at most one query.

    Without a request behind the split, the tokens of graph padding belong to the decodes.
    """
    query_lens = [*batch.query_lens, *[0] * batch.padded_requests]
    if rows is None:
        rows = next((r for r, q in enumerate(query_lens) if q > 1), len(query_lens))
    rows = min(rows, len(query_lens))
    padded = batch.padded_tokens if rows == len(query_lens) and rows else 0
    return Split(rows, sum(query_lens[:rows]) + padded)


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


def view_outputs(view: Any, prefix: str, mask: Any) -> Outputs:
    """Return the fields of a view; its mask is "given" if it is the one that was given."""
    if view is None:
        return {prefix: None}
    outputs: Outputs = {prefix: "a view"}
    for name in (*COUNTS, *TENSORS):
        outputs[f"{prefix}.{name}"] = getattr(view, name, MISSING)
    bias = getattr(view, "attn_bias", MISSING)
    outputs[f"{prefix}.attn_bias"] = "given" if bias is mask else bias
    outputs[f"{prefix}.bounds"] = Bounds(**{name: getattr(view, name, None) for name in BOUNDS})
    return outputs


@dataclass(frozen=True, kw_only=True)
class _ViewFacts(Facts):
    batch: Batch
    split: Split
    given: dict[str, Any]
    """All arguments by name."""
    pattern: int


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
    given = fields_of(metadata, split, [_MASK])
    items = list(given.items())
    count = case.params["positional"]
    return Call(
        dict(items[:count]),
        dict(items[count:]),
        arena=arena,
        facts=_ViewFacts(batch=batch, split=split, given=given, pattern=pattern),
    )


def _run(offered: Any, call: Call) -> Outputs:
    """Make the metadata and read each of its views twice."""
    given = call.facts.given
    made = offered(*call.args.values(), **call.kwargs)
    outputs: Outputs = {name: getattr(made, name, MISSING) for name in given}
    outputs["attn_bias"] = "given" if made.attn_bias is given["attn_bias"] else made.attn_bias
    for prefix in (PREFILLS, DECODES):
        view = getattr(made, prefix)
        outputs |= view_outputs(view, prefix, given["attn_bias"])
        outputs[f"{prefix} is kept"] = getattr(made, prefix) is view
    return outputs


def _clocked(offered: Any, call: Call) -> Callable[[], Any]:
    """Return the making of the metadata with one read of each view, as in an engine step."""

    def step() -> Any:
        made = offered(*call.args.values(), **call.kwargs)
        return made.prefill_metadata, made.decode_metadata

    return step


def _outputs(_call: Call, result: Outputs) -> Outputs:
    return result


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    batch, split = call.facts.batch, call.facts.split
    for name in (PREFILLS, DECODES):
        if outputs[f"{name} is kept"] is not True:
            yield Violation(f"{name} is kept", "is not True: each access builds a new view")
    yield from view_violations(batch, split, outputs, call.facts.pattern)


def view_violations(
    batch: Batch, split: Split, outputs: Outputs, pattern: int = 0
) -> Iterator[Violation]:
    """Compare the two views with the numbers of the batch."""
    made = batch_arrays(batch, pattern)
    tokens = made.num_actual_tokens if made.num_reqs else 0
    behind = (made.num_reqs - split.rows, tokens - split.tokens)
    yield from _presence(outputs, PREFILLS, behind[0] > 0)
    yield from _presence(outputs, DECODES, split.tokens > 0)
    if outputs[DECODES] is not None:
        rows, end = slice(0, split.rows), slice(0, split.tokens)
        counts = dict(zip(COUNTS, (split.tokens, 0, split.tokens, 0, split.rows), strict=True))
        yield from _view(made, rows, end, counts, outputs, DECODES)
    if outputs[PREFILLS] is not None:
        rows, rest = slice(split.rows, None), slice(split.tokens, tokens)
        counts = dict(zip(COUNTS, (behind[1], behind[1], 0, behind[0], 0), strict=True))
        yield from _view(made, rows, rest, counts, outputs, PREFILLS)
    for name, mask in ((DECODES, "given"), (PREFILLS, None)):
        if outputs[name] is not None and outputs[f"{name}.attn_bias"] != mask:
            text = "has not the mask that was given" if mask else "has a mask"
            yield Violation(f"{name}.attn_bias", text)


def views_consumed(batch: Batch, split: Split, outputs: Outputs) -> Iterator[Violation]:
    """Check that the kernels of the two views together compute the whole batch."""
    expected = expected_tokens(batch)
    total = len(expected.requests)
    for prefix, begin, end in ((DECODES, 0, split.tokens), (PREFILLS, split.tokens, total)):
        if outputs[prefix] is not None:
            stop = begin + outputs[f"{prefix}.num_actual_tokens"]
            yield from part_violations(expected, outputs, prefix, begin, stop)
        elif begin < min(end, total):
            text = f"tokens from {begin} on are in neither part"
            yield Violation(prefix, "leaves tokens in neither part", text)


def _presence(outputs: Outputs, name: str, expected: bool) -> Iterator[Violation]:
    if (outputs[name] is not None) != expected:
        yield Violation(name, "is None" if expected else "is there though the batch has none")


def _view(
    made: Any,
    rows: slice,
    tokens: slice,
    counts: dict[str, int],
    outputs: Outputs,
    prefix: str,
) -> Iterator[Violation]:
    """Check the view's counts, its rebased rows and tokens, and its bounds."""
    query_lens = made.query_start_loc[1:] - made.query_start_loc[:-1]
    view = {name: outputs[f"{prefix}.{name}"] for name in TENSORS}
    for name, count in counts.items():
        got = outputs[f"{prefix}.{name}"]
        if type(got) is not int or got != count:
            yield Violation(f"{prefix}.{name}", f"is not {count}, its own count")
    offsets = view["query_start_loc"].tolist()
    if not offsets or offsets[0] != 0:
        yield Violation(f"{prefix}.query_start_loc", "is not rebased to 0")
    elif [b - a for a, b in pairwise(offsets)] != query_lens[rows].tolist():
        yield Violation(f"{prefix}.query_start_loc", "has not the queries of its rows")
    if view["seq_lens"].tolist() != made.seq_lens[rows].tolist():
        yield Violation(f"{prefix}.seq_lens", "has not the lengths of its rows")
    live = ~made.stale_blocks[rows]
    table = view["block_table"].cpu().numpy()
    if table.shape != live.shape or (table[live] != made.block_table[rows][live]).any():
        yield Violation(f"{prefix}.block_table", "has not the blocks of its rows")
    if view["slot_mapping"].tolist() != made.slot_mapping[tokens].tolist():
        yield Violation(f"{prefix}.slot_mapping", "has not exactly the slots of its tokens")
    yield from _bounds(made, rows, query_lens, outputs[f"{prefix}.bounds"].values, prefix)


def _bounds(
    made: Any, rows: slice, query_lens: Any, bounds: dict[str, Any], prefix: str
) -> Iterator[Violation]:
    lengths = {"max_query_len": query_lens[rows], "max_seq_len": made.seq_lens[rows]}
    for name, values in lengths.items():
        bound, longest, most = bounds[name], int(values.max(initial=0)), getattr(made, name)
        if type(bound) is not int:
            yield Violation(f"{prefix}.bounds", f"has a {name} that is no Python int")
        elif bound < longest:
            yield Violation(f"{prefix}.bounds", f"has a {name} below its longest, {longest}")
        elif bound > most:
            yield Violation(f"{prefix}.bounds", f"has a {name} above the batch's, {most}")


def _diagnose(call: Call, place: Place, expected: Any, got: Any) -> str:
    prefix, _, name = place.field.partition(".")
    if prefix not in (PREFILLS, DECODES):
        return ""
    if name in COUNTS:
        return "a view without counts of its own" if got == 0 else ""
    if not isinstance(got, torch.Tensor) or not isinstance(expected, torch.Tensor):
        return ""
    whole = call.facts.given.get(name)
    if name == "query_start_loc" and got.shape == expected.shape:
        shifts = set((got - expected).tolist())
        return "absolute offsets in a view" if len(shifts) == 1 else ""
    if name in TENSORS and got.shape != expected.shape and torch.isin(got, whole).all():
        return "cut with the wrong length"
    return "another row's entry" if name in ("seq_lens", "block_table") else ""


xformers_attention_metadata = Operation(
    name=NAME,
    section="8",
    summary="a step's metadata: decodes first, then prefills, and a view of each",
    inputs=Inputs(
        cases=_cases,
        boundaries=_boundaries,
        from_batch=lambda batch: iter([_case(batch)]),
    ),
    call=ClassCall(
        clocked=_clocked, prepare=_prepare, outputs=_outputs, use=_run, methods=(PREFILLS, DECODES)
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
