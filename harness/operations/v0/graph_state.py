"""Operation of SPEC.md section 7: the first-generation (V0) state of captured graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from types import new_class
from typing import Annotated, Any, Literal

import numpy as np
import torch
from hypothesis import strategies as st
from msgspec import Meta

from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.cases.batches.tensors import row_strides
from attnproof.harness.cases.engines.v0 import Backend, MetadataV0, Runner
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.consumer.v0 import graph_violations
from attnproof.harness.model.call import MISSING, Call, Outputs
from attnproof.harness.model.call_kinds import ClassCall, Clocked, bound
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.operation import Bench, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.metadata import BatchFacts, batch_of
from attnproof.harness.operations.shared.params import Few, Params, size_problem
from attnproof.harness.operations.v0.graph_state_faults import FAULTS
from attnproof.harness.operations.v0.graph_step import (
    DECODER,
    EARLIER,
    ENCODER,
    LONGEST,
    filling_step,
    step_arrays,
    step_metadata,
)

NAME = "CommonAttentionState"
BACKENDS = ("FLASH_ATTN", "XFORMERS", "ROCM_FLASH")
_FIELDS = tuple(f.name for f in fields(MetadataV0))
_NEUTRAL = (-1, 1, 0, 1, -1, 1)
"""Values of padded rows in the buffers, in the order of `DECODER + ENCODER`."""
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


class _Params(Params):
    pad: Annotated[int, Meta(ge=-1, le=1024)]
    spare: Few
    more: Few
    backend: Literal["", "FLASH_ATTN", "XFORMERS", "ROCM_FLASH"]
    earlier: bool
    interrupted: bool
    another: bool = False
    """True if the state also fills the buffers of another graph, between the steps."""


def _problem(case: Case) -> str:
    batch, params = batch_of(case), case.params
    rows = batch.num_requests + params["pad"] + params["spare"] + params["more"] + 2
    return size_problem("batch.blocks", rows * (max(map(len, batch.blocks), default=0) + 2))


def _unreal(case: Case) -> str:
    """Return why no engine makes the case, "" if one may."""
    return "each graph of an engine has a state of its own" if case.params.get("another") else ""


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
        **draw(st.sampled_from(({}, {}, {}, {"another": True}))),
    )


def _boundaries() -> Iterator[tuple[str, Case]]:
    decodes = make_batch([1, 1, 1], [3, 8, 5], 2, order="descending")
    yield "one decode", _case(make_batch([1], [4], 16))
    yield "padded step", _case(decodes, pad=2)
    yield "smaller graph than the capture", _case(decodes, more=5)
    yield "after an earlier step", _case(decodes, earlier=True)
    yield "fewer rows than an earlier step (K13)", _case(decodes, spare=2, earlier=True)
    yield "buffers of another graph between", _case(decodes, spare=2, earlier=True, another=True)
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
    pieces = [Piece("graph_block_tables", tables, on_cpu=True, strides=row_strides(tables.shape))]
    pieces += [Piece(name, values, False, _strides(values)) for name, values in arrays.items()]
    arena = Arena(pieces, stale, device)
    step = {name: arena.tensors[name] for name in arrays}
    runner = Runner(
        device=torch.device(device),
        graph_block_tables=arena.tensors["graph_block_tables"].numpy(),
        max_seq_len_to_capture=LONGEST,
        attn_backend=Backend(params["backend"] or "FLASHINFER"),
    )
    earlier = step_metadata(filling_step(size, width, device)) if params["earlier"] else None
    return Call(
        {
            "runner": runner,
            "max_batch_size": most,
            "batch_size": size,
            "is_encoder_decoder_model": bool(params["backend"]),
            "interrupted": params["interrupted"],
            "earlier": earlier,
            "another": params.get("another", False),
            "attn_metadata": step_metadata(step),
        },
        arena=arena,
        facts=_GraphFacts(batch=batch, arrays=arrays, tables=tables, width=width),
    )


def _strides(values: np.ndarray) -> tuple[int, ...]:
    return (1,) if values.ndim == 1 else row_strides(values.shape)


class _InterruptedError(Exception):
    """An exception inside a capture."""


def _use(offered: Any, call: Call) -> Outputs:
    """Capture a graph, clone the state, and copy the engine steps as a runner does."""
    runner, most, size, encoder_decoder, interrupted, earlier, another, step = call.args.values()
    model = (True,) if encoder_decoder else ()  # False is the default
    state = new_class("BackendState", (offered,))(runner)
    if interrupted:
        try:
            with state.graph_capture(most):
                raise _InterruptedError
        except _InterruptedError:
            pass
    outputs: Outputs = {"refused before the capture": not captures(state)}
    with state.graph_capture(most):
        captured = state.graph_capture_get_metadata_for_batch(size, *model)
        clone = state.graph_clone(size)
        outputs["clone's class"] = type(clone) is type(state)
        outputs["clone refused inside the capture"] = not captures(clone)
        outputs |= {f"captured.{name}": _now(getattr(captured, name, MISSING)) for name in _FIELDS}
    outputs["refused after the capture"] = not captures(state)
    buffers = clone.get_graph_input_buffers(captured, *model)
    outputs["buffers"] = sorted(buffers)
    outputs["graph's own"] = all(
        tensor.data_ptr() == getattr(captured, name).data_ptr() for name, tensor in buffers.items()
    )
    steps = [(buffers, earlier)] if earlier else []
    if another:  # a state that remembers its last step would clear too little afterwards
        steps.append(({name: tensor.clone() for name, tensor in buffers.items()}, step))
    for into, metadata_ in (*steps, (buffers, step)):
        clone.begin_forward(None)
        _copy_slots(into, metadata_)
        clone.prepare_graph_input_buffers(into, metadata_, *model)
    return outputs | {f"buffers.{name}": tensor for name, tensor in buffers.items()}


def _clocked(offered: Any, call: Call) -> Callable[[], Any]:
    """Return the copy of an engine step's lengths and tables to the buffers, as before a replay."""
    runner, most, size, encoder_decoder, _, _, _, step = call.args.values()
    state = new_class("BackendState", (offered,))(runner)
    with state.graph_capture(most):
        captured = state.graph_capture_get_metadata_for_batch(size, encoder_decoder)
    buffers = state.get_graph_input_buffers(captured, encoder_decoder)
    state.begin_forward(None)
    call.plain_written["buffers"] = buffers
    return bound(state.prepare_graph_input_buffers, buffers, step, encoder_decoder)


def _clocked_outputs(call: Call, _result: Any) -> Outputs:
    """Return the buffers that the copy writes, after the runner has copied the slots."""
    buffers = call.plain_written["buffers"]
    _copy_slots(buffers, call["attn_metadata"])
    return {f"buffers.{name}": tensor for name, tensor in buffers.items()}


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
    except Exception:  # the fault of this call checks the class of the error
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
        if outputs["captured.max_encoder_seq_len"] != LONGEST:
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
    if field not in EARLIER or not isinstance(got, torch.Tensor):
        return ""
    stale = EARLIER[field]
    same = got.shape == expected.shape and got.dtype == expected.dtype
    return "an earlier step's value kept" if same and (got[got != expected] == stale).all() else ""


common_attention_state = Operation(
    name=NAME,
    section="7",
    summary="the buffers of captured V0 graphs",
    inputs=Inputs(
        params=_Params,
        problem=_problem,
        unreal=_unreal,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_of_an_engine,
        faults=FAULTS,
    ),
    call=ClassCall(
        clocked=Clocked(_clocked, _clocked_outputs), prepare=_prepare, outputs=_outputs, use=_use
    ),
    contract=Contract(
        invariants=_invariants,
        consume=lambda call, outputs: graph_violations(call.facts.batch, outputs),
        may_sync=lambda _: True,  # a capture copies the runner's block tables
        diagnose=_diagnose,
    ),
    bench=Bench(cases=_timed),
)

OPERATIONS = (common_attention_state,)
