"""Operation of SPEC.md section 7: the first-generation (V0) state of captured graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.cases.engines.v0 import Backend, MetadataV0, Runner, Step, sequences
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.consumer.v0 import graph_violations
from attnproof.harness.model.call import MISSING, Call, Outputs
from attnproof.harness.model.call_kinds import ClassCall, bound
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.metadata import (
    BatchFacts,
    batch_of,
    wrong_type,
    wrong_value,
)

NAME = "CommonAttentionState"
DECODER = ("slot_mapping", "seq_lens_tensor", "block_tables")
ENCODER = ("encoder_seq_lens_tensor", "cross_slot_mapping", "cross_block_tables")
BACKENDS = ("FLASH_ATTN", "XFORMERS", "ROCM_FLASH")
_FIELDS = tuple(f.name for f in fields(MetadataV0))
_NEUTRAL = (-1, 1, 0, 1, -1, 1)
_LONGEST = 4096
_REFUSED = (
    "refused before the capture",
    "refused after the capture",
    "clone refused inside the capture",
)
_TRUE = (*_REFUSED, "clone's class", "graph's own")
"""Output fields that must be True."""


@dataclass(frozen=True, kw_only=True)
class _GraphFacts(BatchFacts):
    arrays: dict[str, np.ndarray]
    """Arrays of the engine step's metadata."""
    tables: np.ndarray
    """The runner's block tables."""
    width: int
    """Columns of the graph's block tables."""


def _case(batch: Batch, **params: Any) -> Case:
    """Return the case of the batch's decodes in a graph.

    `pad`: padded rows of the engine step's metadata, -1 for metadata built without a graph.
    `spare`: further rows of the graph. `more`: further rows of the capture. `backend`: name
    for an encoder-decoder model, "" for a decoder. `earlier`: True if the buffers hold an
    earlier engine step. `interrupted`: True if an exception ended an earlier capture.
    """
    plain = {"pad": 0, "spare": 0, "more": 0, "backend": ""}
    return Case(NAME, batch, plain | {"earlier": False, "interrupted": False} | params)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    return _case(
        draw(batches(min_requests=1)),
        pad=draw(st.sampled_from((0, -1, 2))),
        spare=draw(st.sampled_from((0, 0, 1, 3))),
        more=draw(st.sampled_from((0, 1, 4))),
        backend=draw(st.sampled_from(("", *BACKENDS))),
        earlier=draw(st.booleans()),
        interrupted=draw(st.booleans()),
    )


def _boundaries() -> Iterator[tuple[str, Case]]:
    decodes = make_batch([1, 1, 1], [3, 8, 5], 2, order="descending")
    yield "one decode", _case(make_batch([1], [4], 16))
    yield "padded step", _case(decodes, pad=2)
    yield "smaller graph than the capture", _case(decodes, more=5)
    yield "after an earlier step", _case(decodes, earlier=True)
    yield "fewer rows than an earlier step (K13)", _case(decodes, spare=2, earlier=True)
    yield "one row for many: no broadcast", _case(make_batch([1], [6], 2), spare=3, earlier=True)
    yield "narrower tables than an earlier step's", _case(decodes, pad=-1, earlier=True)
    yield "exception inside the capture (K28)", _case(decodes, interrupted=True)
    for backend in BACKENDS:
        yield f"encoder-decoder model, {backend}", _case(decodes, backend=backend, earlier=True)
    yield (
        "encoder-decoder model, spare rows",
        _case(decodes, backend="XFORMERS", spare=2, earlier=True),
    )
    yield "many rows", _case(make_batch([1] * 200, list(range(200)), 16), pad=56, earlier=True)


def _of_an_engine(batch: Batch) -> Iterator[Case]:
    yield _case(batch, pad=1, earlier=True)


def _timed(batch: Batch) -> Iterator[Case]:
    """Yield the case of a batch that graphs hold: a few hundred decodes at most."""
    if batch.num_tokens == batch.num_requests <= 256:
        yield _case(batch)


def _prepare(case: Case, pattern: int, device: str) -> Call:
    batch, params = batch_of(case), case.params
    arrays, width = step_arrays(batch, params["pad"], pattern)
    rows = len(arrays["seq_lens_tensor"])
    size = rows + params["spare"]
    most = size + params["more"]
    tables = np.arange((most + 1) * width, dtype=np.int32).reshape(most + 1, width)
    stale = STALE_PATTERNS[pattern]
    pieces = [Piece("graph_block_tables", tables, on_cpu=True, strides=(width + 3, 1))]
    pieces += [Piece(name, values, False, _strides(values)) for name, values in arrays.items()]
    arena = Arena(pieces, stale, device)
    step = {name: arena.tensors[name] for name in arrays}
    runner = Runner(
        device=torch.device(device),
        graph_block_tables=arena.tensors["graph_block_tables"].numpy(),
        max_seq_len_to_capture=_LONGEST,
        attn_backend=Backend(params["backend"] or "FLASHINFER"),
    )
    earlier = metadata(_filled(size, width, device)) if params["earlier"] else None
    return Call(
        {
            "runner": runner,
            "max_batch_size": most,
            "batch_size": size,
            "is_encoder_decoder_model": bool(params["backend"]),
            "interrupted": params["interrupted"],
            "earlier": earlier,
            "attn_metadata": metadata(step),
        },
        arena=arena,
        facts=_GraphFacts(batch=batch, arrays=arrays, tables=tables, width=width),
    )


def _strides(values: np.ndarray) -> tuple[int, ...]:
    return (1,) if values.ndim == 1 else (values.shape[1] + 3, 1)


def step_arrays(batch: Batch, pad: int, pattern: int) -> tuple[dict[str, np.ndarray], int]:
    """Return the arrays of the decodes' metadata, and the columns of a graph's block tables."""
    found = sequences(batch, Step(pad_size=0))
    rows = len(found) + max(0, pad)
    longest = max(len(one.blocks) for one in found)
    width = longest + 1
    tables = np.zeros((rows, longest if pad == -1 else width), dtype=np.int32)
    slots = np.full(rows, -1, dtype=np.int64)
    seq_lens = np.ones(rows, dtype=np.int32)
    for row, one in enumerate(found):
        blocks = [block ^ pattern for block in one.blocks]
        tables[row, : len(blocks)] = blocks
        column, offset = divmod(one.context_len, batch.block_size)
        slots[row] = blocks[column] * batch.block_size + offset
        seq_lens[row] = one.context_len + 1
    encoder_lens = np.arange(rows, dtype=np.int32) + 3 + pattern
    values = (slots, seq_lens, tables, encoder_lens, slots[:0], tables + np.int32(pattern == 0))
    return dict(zip(DECODER + ENCODER, values, strict=True)), width


_EARLIER = {
    **{f"buffers.{name}": 77 for name in DECODER + ENCODER},
    **{f"buffers.{name}": 66 for name in ("block_tables", "cross_block_tables")},
    "buffers.slot_mapping": 5,
}
"""Value of every element in the engine step of `_filled`, by output field."""


def _filled(rows: int, width: int, device: str) -> dict[str, torch.Tensor]:
    """Return an engine step that fills every element of a graph's buffers."""
    lens = torch.full((rows,), 77, dtype=torch.int32, device=device)
    tables = torch.full((rows, width), 66, dtype=torch.int32, device=device)
    slots = torch.full((rows,), 5, dtype=torch.int64, device=device)
    values = (slots, lens, tables, lens, slots[:0], tables)
    return dict(zip(DECODER + ENCODER, values, strict=True))


def metadata(tensors: dict[str, torch.Tensor]) -> MetadataV0:
    """Return metadata of decodes with these tensors."""
    return MetadataV0(
        num_prefills=0,
        num_prefill_tokens=0,
        num_decode_tokens=len(tensors["seq_lens_tensor"]),
        multi_modal_placeholder_index_maps=None,
        enable_kv_scales_calculation=True,
        seq_lens=None,
        max_query_len=1,
        max_prefill_seq_len=0,
        max_decode_seq_len=_LONGEST,
        query_start_loc=None,
        seq_start_loc=None,
        context_lens_tensor=None,
        use_cuda_graph=True,
        **tensors,  # type: ignore[arg-type]
    )


class _InterruptedError(Exception):
    """An exception inside a capture."""


def _use(offered: Any, call: Call) -> Outputs:
    """Capture a graph, clone the state, and copy the engine steps as a runner does."""
    runner, most, size, encoder_decoder, interrupted, earlier, step = call.args.values()
    state = type("BackendState", (offered,), {})(runner)
    if interrupted:
        try:
            with state.graph_capture(most):
                raise _InterruptedError
        except _InterruptedError:
            pass
    outputs: Outputs = {"refused before the capture": not captures(state)}
    with state.graph_capture(most):
        made = state.graph_capture_get_metadata_for_batch(size, encoder_decoder)
        clone = state.graph_clone(size)
        outputs["clone's class"] = type(clone) is type(state)
        outputs["clone refused inside the capture"] = not captures(clone)
        outputs |= {f"captured.{name}": _now(getattr(made, name, MISSING)) for name in _FIELDS}
    outputs["refused after the capture"] = not captures(state)
    buffers = clone.get_graph_input_buffers(made, encoder_decoder)
    outputs["buffers"] = sorted(buffers)
    outputs["graph's own"] = all(
        tensor.data_ptr() == getattr(made, name).data_ptr() for name, tensor in buffers.items()
    )
    for metadata_ in filter(None, (earlier, step)):
        clone.begin_forward(None)
        _copy_slots(buffers, metadata_)
        clone.prepare_graph_input_buffers(buffers, metadata_, encoder_decoder)
    return outputs | {f"buffers.{name}": tensor for name, tensor in buffers.items()}


def _clocked(offered: Any, call: Call) -> Callable[[], Any]:
    """Return the copy before a replay: an engine step's lengths and tables to the buffers."""
    runner, most, size, encoder_decoder, _, _, step = call.args.values()
    state = type("BackendState", (offered,), {})(runner)
    with state.graph_capture(most):
        made = state.graph_capture_get_metadata_for_batch(size, encoder_decoder)
    buffers = state.get_graph_input_buffers(made, encoder_decoder)
    state.begin_forward(None)
    return bound(state.prepare_graph_input_buffers, buffers, step, encoder_decoder)


def _copy_slots(buffers: dict[str, torch.Tensor], step: Any) -> None:
    """Copy the slots of an engine step of the graph's size, as published runners do."""
    slots = step.slot_mapping
    if isinstance(slots, torch.Tensor) and slots.shape == buffers["slot_mapping"].shape:
        buffers["slot_mapping"].copy_(slots)


def _now(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def captures(state: Any) -> bool:
    """True if the state is in a capture: then it can be cloned."""
    try:
        state.graph_clone(1)
    except Exception:  # the faults check its class
        return False
    return True


def _outputs(_call: Call, result: Outputs) -> Outputs:
    return result


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check every element of the buffers against the engine step alone."""
    # Both packages share one implementation, so comparing them detects nothing.
    size, width, step = call["batch_size"], call.facts.width, call.facts.arrays
    encoder_decoder = call["is_encoder_decoder_model"]
    expected = {
        "captured.slot_mapping": np.full(size, -1),
        "captured.seq_lens_tensor": np.ones(size),
        "captured.block_tables": call.facts.tables[:size],
    }
    names = DECODER + (ENCODER if encoder_decoder else ())
    for name, neutral in zip(names, _NEUTRAL, strict=False):
        if name == "cross_slot_mapping":
            expected[f"buffers.{name}"] = np.zeros(0)
            continue
        buffer = np.full((size, width) if step[name].ndim == 2 else size, neutral)
        buffer[tuple(slice(0, n) for n in step[name].shape)] = step[name]
        expected[f"buffers.{name}"] = buffer
    if encoder_decoder:
        expected["captured.cross_block_tables"] = np.ones((size, width))
        expected |= {f"captured.encoder_seq_lens{end}": np.ones(size) for end in ("", "_tensor")}
        if outputs["captured.max_encoder_seq_len"] != _LONGEST:
            yield Violation("captured.max_encoder_seq_len", "is not max_seq_len_to_capture")
    for name, values in expected.items():
        if not np.array_equal(outputs[name].cpu().numpy(), values):
            yield Violation(name, "holds other values than the step, or another filling behind it")
    if outputs["captured.slot_mapping"].dtype is not torch.int64:
        yield Violation("captured.slot_mapping", "is not int64")
    for name in ("captured.seq_lens_tensor", "captured.block_tables"):
        if outputs[name].dtype is not torch.int32:
            yield Violation(name, "is not int32")
    if outputs["buffers"] != sorted(names):
        yield Violation("buffers", "are not those of the model")
    for name in _TRUE:
        if outputs[name] is not True:
            yield Violation(name, "does not hold")


def _diagnose(_call: Call, place: Place, expected: Any, got: Any) -> str:
    field = place.field
    if field in _REFUSED and got is False:
        return "state stays in capturing mode"
    if field not in _EARLIER or not isinstance(got, torch.Tensor):
        return ""
    stale = _EARLIER[field]
    same = got.shape == expected.shape and got.dtype == expected.dtype
    return "an earlier step's value kept" if same and (got[got != expected] == stale).all() else ""


def _step_fault(field: str, **values: Any) -> Fault:
    """Return the fault of other fields of the engine step; functions get the field's value."""

    def malformed(step: MetadataV0) -> MetadataV0:
        new = {
            name: value(getattr(step, name)) if callable(value) else value
            for name, value in values.items()
        }
        return replace(step, **new)

    return Fault("attn_metadata", malformed, field)


def _one_more(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat([tensor, tensor[:1]])


def _larger(step: MetadataV0, rows: int) -> MetadataV0:
    """Return an engine step with more decodes than a graph of `rows` rows."""
    tensors = {name: getattr(step, name) for name in DECODER + ENCODER}
    return metadata({name: torch.cat([t] * (rows + 1)) for name, t in tensors.items()})


def _wider(tables: torch.Tensor) -> torch.Tensor:
    return torch.cat([tables, tables, tables[:, :1]], dim=1) if tables.shape[1] else tables


def _is_encoder_decoder(case: Case) -> bool:
    return bool(case.params["backend"])


def _encoder_fault(field: str, **values: Any) -> Fault:
    return replace(_step_fault(field, **values), applies=_is_encoder_decoder)


common_attention_state = Operation(
    name=NAME,
    section="7",
    summary="the buffers of captured V0 graphs",
    inputs=Inputs(
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_of_an_engine,
        faults={
            "capture of no rows": wrong_value("max_batch_size", 0),
            "capture of more rows than the runner has": wrong_value("max_batch_size", 100_000),
            "capture of another type": wrong_type("max_batch_size"),
            "graph of no rows": wrong_value("batch_size", 0),
            "graph larger than the capture": wrong_value("batch_size", 100_000),
            "graph of another type": wrong_type("batch_size"),
            "backend without encoder-decoder models": Fault(
                "runner",
                lambda runner: replace(runner, attn_backend=Backend("TORCH_SDPA")),
                "attn_backend",
                applies=_is_encoder_decoder,
            ),
            "step with prompts": _step_fault("num_prefills", num_prefills=1),
            "step without decodes": _step_fault("decode_metadata", num_decode_tokens=0),
            "step without block tables": _step_fault("block_tables", block_tables=None),
            "step without slots for a row": _step_fault("slot_mapping", slot_mapping=_one_more),
            "step larger than the graph": Fault(
                "attn_metadata", _larger, "seq_lens_tensor", given=("batch_size",)
            ),
            "tables wider than the graph's": _step_fault("block_tables", block_tables=_wider),
            "float lengths": _step_fault("seq_lens_tensor", seq_lens_tensor=lambda t: t.float()),
            "flat tables": _step_fault("block_tables", block_tables=lambda t: t.flatten()),
            "step without encoder lengths": _encoder_fault(
                "encoder_seq_lens_tensor", encoder_seq_lens_tensor=None
            ),
        },
    ),
    call=ClassCall(clocked=_clocked, prepare=_prepare, outputs=_outputs, use=_use),
    contract=Contract(
        invariants=_invariants,
        consume=lambda call, outputs: graph_violations(call.facts.batch, outputs),
        may_sync=lambda _: True,  # a capture copies the runner's block tables
        diagnose=_diagnose,
    ),
    bench=Bench(cases=_timed),
    built_in=BuiltIn(shared="copies into buffers: there is nothing to make faster"),
)

OPERATIONS = (common_attention_state,)
