"""Operation of SPEC.md section 7: the first-generation (V0) metadata builder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Annotated, Any

import msgspec
import numpy as np
import torch
from hypothesis import strategies as st
from msgspec import Meta

from attnproof.harness.cases.batches.strategies import HIGHEST_BLOCK, batches, make_batch
from attnproof.harness.cases.batches.tensors import row_strides
from attnproof.harness.cases.engines.v0 import (
    InputBuilder,
    MetadataV0,
    Runner,
    Step,
    build_lengths,
    seq_groups,
    step_from_params,
)
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.consumer.v0 import v0_violations
from attnproof.harness.model.call import MISSING, Call, Outputs
from attnproof.harness.model.call_kinds import ClassCall, Clocked
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.model.operation import Bench, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.metadata import BatchFacts, batch_of
from attnproof.harness.operations.shared.params import Counts, Few, Params
from attnproof.harness.operations.v0.metadata_builder_faults import FAULTS

NAME = "CommonMetadataBuilder"
_FIELDS = tuple(f.name for f in fields(MetadataV0))
_KINDS: tuple[dict[str, Any], ...] = ({}, {"chunked": False}, {"pad_size": 0}, {"pad_size": 2})
_STEPS = st.sampled_from(_KINDS)
_ROWS = st.lists(st.integers(0, 5), max_size=3, unique=True)
_SPARE_ROWS, _SPARE_COLUMNS = 2, 1
_MAPS = "multi_modal_placeholder_index_maps"
_PARAMETERS = ("input_builder", "seq_lens", "query_lens", "cuda_graph_pad_size", "batch_size")


@dataclass(frozen=True, kw_only=True)
class _StepFacts(BatchFacts):
    step: Step


class _Params(Params):
    pad_size: Annotated[int, Meta(ge=-1, le=1024)] = -1
    chunked: bool = True
    window: Count = 0
    profile: Annotated[int, Meta(ge=0, le=2)] = 0
    hits: Counts = msgspec.field(default_factory=list)
    last_chunks: Counts = msgspec.field(default_factory=list)
    images: Counts = msgspec.field(default_factory=list)
    whole: Counts = msgspec.field(default_factory=list)
    together: Few = 1
    chunk_blocks: Count = 0
    numpy: Annotated[int, Meta(ge=0, le=1)] = 0


def _case(batch: Batch, **step: Any) -> Case:
    """Return the case of a batch; `step` has fields of `harness.cases.engines.v0.Step`."""
    return Case(NAME, batch, step)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    batch = draw(batches(min_requests=1))
    step = dict(draw(_STEPS))
    kind = draw(st.integers(0, 7))
    if kind == 1:
        return _case(batch, profile=draw(st.sampled_from((1, 2))))
    if kind & 2:
        step["window"] = draw(st.integers(1, 40))
    if kind & 4:
        step |= {name: draw(_ROWS) for name in ("hits", "images", "last_chunks")}
    if kind == 0:
        step |= {"together": draw(st.sampled_from((1, 2, 3))), "window": draw(st.integers(0, 9))}
        step["whole"] = draw(_ROWS)
    if kind == 4:
        step |= {"numpy": 1, "chunk_blocks": draw(st.integers(0, 2))}
    return _case(batch, **step)


def _boundaries() -> Iterator[tuple[str, Case]]:
    mixed = make_batch([5, 3, 1, 1], [0, 4, 6, 2], 2, order="shuffled")
    prompts = make_batch([5, 3], [0, 4], 2)
    decodes = make_batch([1, 1, 1], [3, 8, 5], 2, order="descending")
    yield "prompts and decodes", _case(mixed)
    yield "prompts computed at once", _case(make_batch([5, 4], [0, 0], 2), chunked=False)
    yield "prompts at once beside decodes", _case(mixed, chunked=False)
    yield "decodes", _case(decodes)
    yield "one token", _case(make_batch([1], [0], 16))
    yield "graph", _case(decodes, pad_size=0)
    yield "graph with padding", _case(decodes, pad_size=3)
    yield "prefix-cache hit", _case(prompts, chunked=False, hits=[1])
    chunk = make_batch([3, 2], [4, 6], 2, order="shuffled")
    yield "chunked prefill with a prefix-cache hit (K26)", _case(chunk, hits=[0, 1])
    yield "last chunk of one token", _case(make_batch([1, 1], [6, 6], 2), last_chunks=[1])
    yield "chunks that read their last blocks", _case(chunk, chunk_blocks=1)
    yield "window within the sequence", _case(mixed, window=3)
    yield "window of whole blocks", _case(decodes, window=4)
    yield "window beyond the sequence", _case(mixed, window=90)
    yield "window, graph", _case(decodes, window=3, pad_size=2)
    yield (
        "window on a prompt at once",
        _case(make_batch([9, 2], [0, 0], 2), chunked=False, window=4),
    )
    yield "window of only one of the samples", _case(decodes, window=3, whole=[1], together=3)
    yield "images", _case(make_batch([6, 5, 1, 1], [0, 0, 0, 7], 2), images=[0, 1, 2, 3])
    yield "samples of one request", _case(make_batch([1] * 5, [7] * 5, 4, shared=True), together=3)
    yield "block ids of numpy's types", _case(mixed, numpy=1)
    yield "block ids of numpy's types, long tables", _case(make_batch([300], [64], 16), numpy=1)
    yield "profile run without tables", _case(mixed, profile=1)
    yield "profile run with tables of None", _case(mixed, profile=2)
    yield "highest block id", _case(make_batch([300, 1], [0, 700], 256, first=HIGHEST_BLOCK - 5))
    long = make_batch([2000, 1, 1], [100, 4000, 9], 16, order="shuffled")
    yield "long sequences", _case(long)
    yield "many decodes", _case(make_batch([1] * 200, list(range(200)), 16), pad_size=56)


def _of_an_engine(batch: Batch) -> Iterator[Case]:
    yield _case(batch)
    if batch.query_lens and max(batch.query_lens) == 1:
        yield _case(batch, pad_size=2)


def input_of(case: Case, pattern: int, device: str) -> tuple[InputBuilder, list[Any], Arena]:
    """Return the input builder, the other arguments of `build`, and the runner tables' arena.

    Pattern 1 gives the live blocks other ids and the runner's tables another poison.
    """
    batch, step = batch_of(case), step_from_params(case.params)
    if pattern:
        batch = msgspec.structs.replace(batch, blocks=tuple(map(_other_ids, batch.blocks)))
    groups = seq_groups(batch, step)
    seq_lens, query_lens = build_lengths(batch, step)
    shape = (len(seq_lens) + _SPARE_ROWS, max([1, *map(len, batch.blocks)]) + _SPARE_COLUMNS)
    stale = STALE_PATTERNS[pattern]
    tables = np.full(shape, stale, dtype=np.int32)
    piece = Piece("graph_block_tables", tables, on_cpu=True, strides=row_strides(shape))
    arena = Arena([piece], stale)
    runner = Runner(
        device=torch.device(device),
        graph_block_tables=arena.tensors["graph_block_tables"].numpy(),
        pin_memory=device != "cpu",
    )
    builder = InputBuilder(runner, step.window or None, batch.block_size, groups, step.chunked)
    rows = len(seq_lens) if step.pad_size != -1 else sum(query_lens)
    return builder, [seq_lens, query_lens, step.pad_size, rows], arena


def _other_ids(blocks: tuple[int, ...]) -> tuple[int, ...]:
    """Return other ids for blocks above 1: both patterns fill tables with 0."""
    return tuple(block ^ 1 if block > 1 else block for block in blocks)


def _prepare(case: Case, pattern: int, device: str) -> Call:
    builder, others, arena = input_of(case, pattern, device)
    return Call(
        dict(zip(_PARAMETERS, (builder, *others), strict=True)),
        arena=arena,
        plain={"inter_data_list": builder.inter_data_list, "lengths": others[:2]},
        facts=_StepFacts(batch=batch_of(case), step=step_from_params(case.params)),
    )


def builder_class(offered: Any) -> Any:
    """Return the candidate's class as a backend subclasses it."""

    class Builder(offered):  # type: ignore[misc]
        _metadata_cls = MetadataV0

    return Builder


def _use(offered: Any, call: Call) -> Any:
    input_builder, *arguments = call.args.values()
    builder = builder_class(offered)(input_builder)
    builder.prepare()
    return builder.build(*arguments)


def _clocked(offered: Any, call: Call) -> Callable[[], Any]:
    """Return an engine step of a long-lived builder: `prepare`, then `build`."""
    input_builder, *arguments = call.args.values()
    builder = builder_class(offered)(input_builder)

    def step() -> Any:
        builder.prepare()
        return builder.build(*arguments)

    return step


def metadata_v0_outputs(metadata: Any) -> Outputs:
    """Return every field of V0 metadata by name; index maps become plain lists."""
    outputs = {name: getattr(metadata, name, MISSING) for name in _FIELDS}
    maps = outputs[_MAPS]
    if isinstance(maps, dict):
        plain = {key: [list(mapping.src), list(mapping.dest)] for key, mapping in maps.items()}
        outputs[_MAPS] = plain
    return outputs


def _outputs(_call: Call, result: Any) -> Outputs:
    return metadata_v0_outputs(result)


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check tokens, offsets and slots against the sequence groups alone."""
    args: Any = call.args.values()
    builder, seq_lens, query_lens, pad_size, batch_size = args
    groups = builder.inter_data_list
    prompts = sum(len(group.seq_ids) for group in groups if group.is_prompt)
    if outputs["num_prefills"] != prompts:
        yield Violation("num_prefills", f"is not the number of prompts, {prompts}")
    tokens = outputs["num_prefill_tokens"] + outputs["num_decode_tokens"]
    if tokens != sum(query_lens) + max(0, pad_size) or len(outputs["slot_mapping"]) != tokens:
        yield Violation("slot_mapping", "has not one entry a token")
    for name, lens in (("query_start_loc", query_lens), ("seq_start_loc", seq_lens)):
        if outputs[name].tolist() != list(accumulate(lens, initial=0)):
            yield Violation(name, "is not the running sum of the lengths")
    if pad_size >= 0 and outputs["num_decode_tokens"] != batch_size:
        yield Violation("num_decode_tokens", "is not the batch size of the graph")
    yield from _slot_violations(groups, builder, outputs["slot_mapping"].tolist())


def _consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    yield from v0_violations(call.facts.batch, call.facts.step, outputs)


def _slot_violations(groups: Any, builder: InputBuilder, slots: list[int]) -> Iterator[Violation]:
    token, size = 0, builder.block_size
    for group in groups:
        for row, seq_id in enumerate(group.seq_ids):
            table = (group.block_tables or {}).get(seq_id) or ()
            query_len = group.query_lens[row]
            for slot in slots[token : token + query_len]:
                if slot != -1 and slot // size not in table:
                    yield Violation(
                        "slot_mapping", "has a slot in a block that is not its sequence's"
                    )
            token += query_len
    if any(slot != -1 for slot in slots[token:]):
        yield Violation("slot_mapping", "gives padding a slot")


def diagnose_tables(expected: Any, got: Any) -> str:
    """Return the diagnosis of wrong V0 block tables, "" without one."""
    if not isinstance(got, torch.Tensor) or got.ndim != 2 or got.dtype != expected.dtype:
        return ""
    if got.shape[0] == expected.shape[0] and got.shape[1] < expected.shape[1]:
        return "block table shorter than its sequence"
    if got.shape != expected.shape:
        return ""
    wrong = got != expected
    if (got[wrong] == STALE_PATTERNS[0]).any():
        return "stale entry read"
    return "block table shorter than its sequence" if (got[wrong] == 0).all() else ""


def _diagnose(_call: Call, place: Place, expected: Any, got: Any) -> str:
    return diagnose_tables(expected, got) if place.field == "block_tables" else ""


common_metadata_builder = Operation(
    name=NAME,
    section="7",
    summary="V0 metadata from the sequence groups of a step",
    inputs=Inputs(
        params=_Params,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_of_an_engine,
        faults=FAULTS,
    ),
    call=ClassCall(
        clocked=Clocked(_clocked, _outputs), prepare=_prepare, outputs=_outputs, use=_use
    ),
    contract=Contract(invariants=_invariants, consume=_consumed, diagnose=_diagnose),
    bench=Bench(cases=lambda batch: [_case(batch)]),
)

OPERATIONS = (common_metadata_builder,)
