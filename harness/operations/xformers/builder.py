"""Operation of SPEC.md section 8: the builder of XFormers metadata and the decodes' mask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import torch
from hypothesis import strategies as st
from msgspec import Meta

from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.cases.batches.subclass import REQUEST_FIELDS, TOKEN_FIELDS
from attnproof.harness.cases.batches.tensors import batch_arrays, lay_out
from attnproof.harness.cases.layers.xformers_step import import_xformers
from attnproof.harness.cases.variation.neighbours import neighbours_of
from attnproof.harness.consumer.batch import Rows, expected_tokens, int64_array, row_violations
from attnproof.harness.consumer.parts import count_violations
from attnproof.harness.model.call import MISSING, Call, Outputs
from attnproof.harness.model.call_kinds import ClassCall, Clocked, bound
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.batch.reorder import (
    Engine,
    order_of,
    order_violations,
    regions_of,
)
from attnproof.harness.operations.shared.faults import metadata_faults
from attnproof.harness.operations.shared.metadata import BatchFacts, batch_of
from attnproof.harness.operations.shared.params import Params
from attnproof.harness.operations.xformers.decode_mask import (
    MASK_LENGTHS,
    PACKAGE,
    mask_outputs,
    mask_violations,
)
from attnproof.harness.operations.xformers.metadata_views import COUNTS, TENSORS, split_of
from attnproof.reference.interface import MetadataError

NAME = "XFormersAttentionMetadataBuilder"
PROGRESS = "progress"
"""Name of the parameter for what the engine's batch has of the progress of its requests."""
_VIA = ("build", "build_for_cudagraph_capture", "build_for_drafting")
_INT32_MAX = 2**31 - 1
_NO_CASCADE = (64, [1, 1], 32, 8, False, False, False, 132)


@dataclass(frozen=True, kw_only=True)
class _BuilderFacts(BatchFacts):
    device: torch.device
    engine: Engine
    rows: dict[str, list[int] | None]
    """Query lengths of the engine's rows, computed tokens and prompt tokens where it has them."""
    pattern: int
    others: list[Any]
    """Metadata of other steps, of as many rows and tokens."""


class _Params(Params):
    via: Annotated[int, Meta(ge=0, le=len(_VIA) - 1)]
    prefix: Count
    fast: bool
    progress: Annotated[int, Meta(ge=0, le=2)] = 0


def _case(
    batch: Batch, via: int = 0, prefix: int = 0, fast: bool = False, progress: int = 0
) -> Case:
    """Return a case; `via` indexes the three methods that build.

    `progress`: 0 for a batch without any, 1 for computed tokens, 2 for prompt tokens too.
    """
    return Case(NAME, batch, {"via": via, "prefix": prefix, "fast": fast, PROGRESS: progress})


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    batch = draw(batches(max_requests=8))
    via, prefix = draw(st.sampled_from((0, 0, 1, 2))), draw(st.sampled_from((0, 16)))
    return _case(batch, via, prefix, progress=draw(st.integers(0, 2)))


def _boundaries() -> Iterator[tuple[str, Case]]:
    mixed = make_batch([1, 1, 4, 2], [6, 3, 0, 5], 4, order="shuffled")
    yield "decodes, then prefills", _case(mixed)
    yield "shared prefix, fast build", _case(mixed, prefix=4, fast=True)
    yield "capture", _case(mixed, via=1)
    yield "drafting", _case(mixed, via=2)
    for progress, words in ((1, "computed tokens"), (2, "computed and prompt tokens")):
        yield f"reordered by {words}", _case(mixed, progress=progress)
        continued = make_batch([4, 2, 3, 6], [5, 0, 8, 0], 4)
        yield f"only prefills, reordered by {words}", _case(continued, progress=progress)
        short = make_batch([1] * 5, [4, 0, 9, 8, 3], 4)
        yield f"only short rows, reordered by {words}", _case(short, progress=progress)
    yield "only decodes", _case(make_batch([1] * 5, [6, 3, 9, 0, 1], 4, order="descending"))
    yield "only prefills", _case(make_batch([4, 2], [0, 5], 4))
    yield "decode behind a prefill", _case(make_batch([1, 3, 1], [2, 0, 7], 4))
    yield "no requests", _case(make_batch([], [], 4))
    yield "no requests, padded tokens", _case(make_batch([], [], 4, padded_tokens=2))
    yield "idle rows (E23)", _case(make_batch([1, 0, 0, 3], [6, 4, 0, 5], 4))
    yield "only idle rows", _case(make_batch([0, 0], [4, 0], 4))
    graph = make_batch([1, 1], [6, 3], 4, padded_requests=2, padded_tokens=2)
    yield "decodes in a larger graph (E23)", _case(graph, via=1)
    evened = make_batch([1, 1], [6, 3], 4, padded_requests=1, padded_tokens=1)
    yield "as many tokens as rows, one of them padding (E23)", _case(evened)
    yield "rows without a block", _case(make_batch([], [], 4, padded_requests=2))
    yield "two queries a request are no decode", _case(make_batch([2, 2], [6, 3], 4))
    yield "bound above the threshold", _case(make_batch([1, 1], [6, 3], 4, query_slack=3))
    strided = make_batch([1, 1, 3], [6, 3, 2], 4, strided=True, spare_columns=2)
    yield "strided", _case(strided)
    yield "int64", _case(make_batch([1, 1, 3], [6, 3, 2], 4, dtype="int64"))
    room = 2**31 // (4 * 4096)
    wide = make_batch([1] * 4, [5, 9, 0, 2], 4096, spare_columns=room - 1)
    yield "room for more keys than int32 counts", _case(wide)
    yield "one decode, int64", _case(make_batch([1], [4], 4, dtype="int64"))
    yield "one key of one block", _case(make_batch([1], [0], 1))
    many = make_batch([1] * 250 + [30] * 4, [(7 * row) % 90 for row in range(254)], 16)
    yield "many decodes", _case(many)
    yield "long sequences", _case(make_batch([1, 1, 5], [8191, 131071, 4096], 16))


def _prepare(case: Case, pattern: int, device: str) -> Call:
    batch, params = batch_of(case), case.params
    metadata, arena = lay_out(batch, pattern, device)
    via = _VIA[params["via"] % len(_VIA)]
    others = [other for other in neighbours_of(batch) if via == "build" and _is_ordered(other)]
    spec = SimpleNamespace(block_size=batch.block_size)
    rows = _rows(case)
    engine = Engine(**rows)
    return Call(
        {
            "kv_cache_spec": spec,
            "common_attn_metadata": metadata,
            "via": via,
            "common_prefix_len": params["prefix"],
            "fast_build": params["fast"],
        },
        arena=arena,
        facts=_BuilderFacts(
            metadata=metadata,
            batch=batch,
            device=torch.device(device),
            engine=engine,
            rows=rows,
            pattern=pattern,
            others=[lay_out(other, pattern, device)[0] for other in others],
        ),
    )


def _rows(case: Case) -> dict[str, Any]:
    """Return the lengths of the engine's rows: those of the batch in reverse."""
    batch, progress = batch_of(case), case.params.get(PROGRESS, 0)
    computed = batch.computed_lens[::-1]
    # Without prompt lengths, every second request is in its prompt.
    prompts = [max(1, length + 5 * (row % 2)) for row, length in enumerate(computed)]
    if batch.prompt_lens is not None:
        prompts = list(batch.prompt_lens[::-1])
    return {
        "query_lens": list(batch.query_lens[::-1]),
        "computed_lens": list(computed) if progress else None,
        "prompt_lens": prompts if progress > 1 else None,
    }


def _is_ordered(batch: Batch) -> bool:
    """True if no decode follows a prefill."""
    prefills = [query_len > 1 for query_len in batch.query_lens]
    return prefills == sorted(prefills)


def _run(offered: Any, call: Call) -> Outputs:
    """Make a builder, reorder an engine's batch with it and build."""
    spec, metadata, via, prefix, fast = call.args.values()
    config = SimpleNamespace(speculative_config=None)
    builder = offered(spec, ["layer.0"], config, call.facts.device)
    engine = call.facts.engine
    outputs = {"moved": builder.reorder_batch(engine, engine), "order": order_of(engine)}
    if via == "build":
        table = getattr(metadata, "block_table_tensor", None)
        if isinstance(table, torch.Tensor):  # what an earlier step leaves must not be used again
            for other in call.facts.others:
                builder.build(prefix, other, fast)
            builder.build(prefix, replace(metadata, block_table_tensor=table.flip(0)), fast)
        built = builder.build(prefix, metadata, fast)
        for other in call.facts.others:  # they leave the metadata of this step alone
            builder.build(prefix, other, fast)
    elif via == "build_for_drafting":
        built = builder.build_for_drafting(metadata, 1)
    else:
        built = builder.build_for_cudagraph_capture(metadata)
    return outputs | {
        **_metadata_outputs(built),
        "reorder_batch_threshold": builder.reorder_batch_threshold,
        "cudagraph_support": int(builder.cudagraph_support.value),
        "use_cascade_attention": builder.use_cascade_attention(*_NO_CASCADE),
    }


def _metadata_outputs(built: Any) -> Outputs:
    names = (*COUNTS, *TENSORS, "max_query_len", "max_seq_len")
    outputs: Outputs = {name: getattr(built, name, MISSING) for name in names}
    return outputs | mask_outputs(built.attn_bias)


def _clocked(offered: Any, call: Call) -> Callable[[], Any]:
    """Return `build` of a long-lived builder."""
    spec, metadata, _, prefix, fast = call.args.values()
    config = SimpleNamespace(speculative_config=None)
    builder = offered(spec, ["layer.0"], config, call.facts.device)
    return bound(builder.build, prefix, metadata, fast)


def _outputs(_call: Call, result: Outputs) -> Outputs:
    return result


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Compare the order, the split and the lengths in the mask with the batch."""
    yield from order_violations(regions_of(call.facts.rows, 1), outputs["order"])
    batch, arrays = call.facts.batch, batch_arrays(call.facts.batch, call.facts.pattern)
    split = split_of(batch)
    behind = arrays.num_actual_tokens - split.tokens if arrays.num_reqs else 0
    rows = arrays.num_reqs - split.rows
    counts = (arrays.num_actual_tokens, behind, split.tokens, rows, split.rows)
    for name, count in zip(COUNTS, counts, strict=True):
        if outputs[name] != count:
            yield Violation(name, f"is not {count}")
    if "attn_bias" not in outputs:
        return
    columns = arrays.block_table.shape[1]
    room = columns * batch.block_size
    masked = bool(split.rows) and split.rows * room <= _INT32_MAX
    if (outputs["attn_bias"] is not None) != masked:
        yield Violation("attn_bias", "is missing" if masked else "masks rows that are not decodes")
    elif masked:
        yield from mask_violations(arrays, split.rows, room, outputs)


def _consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check the batch cut at the counts, and the decodes that the mask's kernel reads."""
    expected = expected_tokens(call.facts.batch)
    decodes, prefills, decode_tokens, prefill_tokens = (outputs[name] for name in _CUT)
    counts = (decodes, prefills, decode_tokens, prefill_tokens)
    yield from count_violations(expected, counts, threshold=1)
    if outputs.get("attn_bias") is None:
        return
    names = ("q_seqinfo.seqstart", "k_seqinfo.seqlen", "block_tables")
    starts, seq_lens, table = (int64_array(outputs[f"attn_bias.{name}"]) for name in names)
    rows = Rows(starts, seq_lens, table)
    tokens = np.arange(min(outputs["num_decode_tokens"], len(expected.requests)))
    for violation in row_violations(expected, rows, tokens):
        field = _CONSUMED.get(str(violation.field), "block_tables")
        yield violation._replace(field=f"attn_bias.{field}")


_CUT = ("num_decodes", "num_prefills", "num_decode_tokens", "num_prefill_tokens")
_CONSUMED = {"query_start_loc": "q_seqinfo.seqstart", "seq_lens": "k_seqinfo.seqlen"}


def _diagnose(_call: Call, place: Place, expected: Any, got: Any) -> str:
    field = place.field
    if field == "attn_bias":
        if got is None:
            return "no mask for the decodes"
        return "a mask where none can be" if expected is None else f"a mask that is {got}"
    if field not in MASK_LENGTHS or got is MISSING:
        return ""
    if isinstance(got, torch.Tensor) and got.dtype != expected.dtype:
        return ""
    return "the mask has lengths of another batch"


_METADATA_FAULTS = {
    name: fault
    for name, fault in metadata_faults("common_attn_metadata", sequences=True).items()
    # The builder does not read the fields that a subclass adds.
    if fault.named not in (*REQUEST_FIELDS, *TOKEN_FIELDS)
}


def _narrow(metadata: Any, kv_cache_spec: Any) -> Any:
    """Return the metadata with one column less than its longest sequence needs."""
    longest = int(metadata.seq_lens_cpu.max())
    columns = (longest - 1) // kv_cache_spec.block_size
    return replace(metadata, block_table_tensor=metadata.block_table_tensor[:, :columns])


def _block_size(value: Any, error: type[Exception]) -> Fault:
    spec = SimpleNamespace(block_size=value)
    return Fault("kv_cache_spec", lambda _: spec, "block_size", error)


def _has_sequences(case: Case) -> bool:
    batch = batch_of(case)
    return any(q + c for q, c in zip(batch.query_lens, batch.computed_lens, strict=True))


xformers_attention_metadata_builder = Operation(
    name=NAME,
    section="8",
    summary="splits a batch into decodes and prefills and makes xformers' mask of the decodes",
    inputs=Inputs(
        params=_Params,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=lambda batch: iter([_case(batch)]),
        faults={
            **_METADATA_FAULTS,
            "table too narrow for a sequence": Fault(
                "common_attn_metadata",
                _narrow,
                "block_table_tensor",
                applies=_has_sequences,
                reads=("kv_cache_spec",),
            ),
            "block size of 0": _block_size(0, MetadataError),
            "block size of another type": _block_size("seven", TypeError),
        },
    ),
    call=ClassCall(
        clocked=Clocked(_clocked, lambda _call, built: _metadata_outputs(built)),
        prepare=_prepare,
        outputs=_outputs,
        use=_run,
        methods=("build", "reorder_batch"),
    ),
    contract=Contract(
        invariants=_invariants,
        consume=_consumed,
        diagnose=_diagnose,
        may_alias=frozenset(TENSORS)
        | {
            "attn_bias.block_tables",
            "attn_bias.q_seqinfo.seqstart",
            "attn_bias.k_seqinfo.seqlen",
        },
    ),
    built_in=BuiltIn(package=PACKAGE, load=import_xformers),
)

OPERATIONS = (xformers_attention_metadata_builder,)
