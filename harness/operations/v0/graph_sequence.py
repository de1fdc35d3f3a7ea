"""Sequences of SPEC.md section 7 (oracle 7): graphs captured, prepared, replayed in any order.

Bug classes: a state that an exception leaves half changed (K28), rows of an earlier
engine step in a graph's buffers (K13).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import torch
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from msgspec import Meta

from attnproof.harness.cases.engines import script_v0
from attnproof.harness.cases.engines.script_v0 import BLOCKS, ROWS
from attnproof.harness.cases.machine import Machine
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.program import Code, Line, Script
from attnproof.harness.operations.shared.params import sequence_params
from attnproof.harness.operations.shared.sequence import (
    SEQUENCE_NOT_TIMED,
    SequenceCall,
    sequence_inputs,
    step_pairs,
)
from attnproof.harness.operations.v0.graph_state import captures

NAME = "graph_sequence"
_IMPORTS = {
    "Graph": script_v0.__name__,
    "decodes": script_v0.__name__,
    "make_runner": script_v0.__name__,
    "RuntimeError": "builtins",
}
_LOWEST = 20
"""Lowest value that engine steps write; a capture writes lower values."""
_SIZE = st.integers(1, ROWS)
_VALUE = st.integers(2, 9).map(lambda tens: 10 * tens)


_Rows = Annotated[int, Meta(ge=0, le=1024)]
_PARAMS = sequence_params(
    {
        "begin": [("rows", _Rows)],
        "end": [],
        "fail": [],
        "graph": [("rows", _Rows)],
        "prepare": [(name, _Rows) for name in ("graph", "rows", "width", "value")],
    },
    [("encoder_decoder", bool, False)],
)


class _Machine(Machine):
    operation = NAME

    def __init__(self) -> None:
        super().__init__()
        self.capturing = False
        self.sizes: list[int] = []

    @initialize(encoder_decoder=st.booleans())
    def model(self, encoder_decoder: bool) -> None:
        """Choose the kind of model, which is the same for all graphs."""
        self.params["encoder_decoder"] = encoder_decoder

    @rule(rows=st.integers(1, ROWS + 1))
    def begin(self, rows: int) -> None:
        """Begin a capture, which is refused inside another and for too many rows."""
        self.step("begin", rows=rows)
        self.capturing = self.capturing or rows <= ROWS

    @precondition(lambda self: self.capturing)
    @rule(do=st.sampled_from(("end", "fail")))
    def end(self, do: str) -> None:
        """End the capture, or raise an exception inside it."""
        self.step(do)
        self.capturing = False

    @rule(rows=_SIZE)
    def graph(self, rows: int) -> None:
        """Capture metadata, a clone and its buffers, which is refused outside a capture."""
        self.step("graph", rows=rows)
        if self.capturing:
            self.sizes.append(rows)

    @precondition(lambda self: self.sizes)
    @rule(
        graph=st.integers(0, 9),
        rows=st.integers(1, ROWS + 1),
        width=st.integers(1, BLOCKS + 1),
        value=_VALUE,
    )
    def prepare(self, graph: int, rows: int, width: int, value: int) -> None:
        """Copy an engine step to a graph's buffers; one that is too large is refused."""
        size = self.sizes[graph % len(self.sizes)]
        self.step("prepare", graph=size, rows=rows, width=width, value=value)

    @precondition(lambda self: self.sizes)
    @rule(graph=st.integers(0, 9), rows=_SIZE, width=st.integers(1, BLOCKS), value=_VALUE)
    def prepare_less(self, graph: int, rows: int, width: int, value: int) -> None:
        """Copy an engine step that fills a graph, then a smaller or narrower one."""
        size = self.sizes[graph % len(self.sizes)]
        self.step("prepare", graph=size, rows=size, width=BLOCKS, value=20)
        self.step("prepare", graph=size, rows=min(rows, size), width=width, value=value)


def _script(case: Case, _pattern: int) -> Script:
    encoder_decoder = bool(case.params.get("encoder_decoder"))
    setup = Code()
    setup.runner = setup.make_runner("ROCM_FLASH" if encoder_decoder else "FLASHINFER")
    setup.state = setup.CommonAttentionState(setup.runner)
    setup.graphs = {}
    lines = tuple(_lines(case.params["steps"], encoder_decoder))
    return Script(_IMPORTS, setup.statements, lines)


def _lines(steps: list[dict[str, Any]], encoder_decoder: bool) -> Iterator[Line]:
    most, sizes = 0, set[int]()  # rows of the capture (0 outside one) and of each graph
    for step in steps:
        code, do, rows = Code(), step["do"], max(1, step.get("rows", 1))
        if do == "begin":
            refused = bool(most) or rows > ROWS
            most = most if refused else rows
            code.begun = code.state.graph_capture(rows)
            code.begun.__enter__()
            code.capture = code.begun
            yield code.line(f"begin to capture up to {rows} rows", refused=refused)
        elif do == "end" and most:
            most = 0
            code.capture.__exit__(None, None, None)
            yield code.line("end the capture")
        elif do == "fail" and most:
            most = 0
            code.capture.__exit__(code.RuntimeError, code.RuntimeError("out of memory"), None)
            yield code.line("an exception inside the capture")
        elif do == "graph":
            sizes |= {rows} if rows <= most else set()
            yield _graph(code, rows, encoder_decoder, rows > most)
        elif do == "prepare" and step["graph"] in sizes:
            yield _prepare(code, step, encoder_decoder)


def _graph(code: Code, rows: int, encoder_decoder: bool, refused: bool) -> Line:
    code.made = code.state.graph_capture_get_metadata_for_batch(rows, encoder_decoder)
    code.clone = code.state.graph_clone(rows)
    buffers = code.clone.get_graph_input_buffers(code.made, encoder_decoder)
    code.graphs.update({rows: code.Graph(code.clone, buffers)})
    return code.line(f"capture a graph of {rows} rows", refused=refused)


def _prepare(code: Code, step: dict[str, Any], encoder_decoder: bool) -> Line:
    size, rows, width = step["graph"], max(1, step["rows"]), max(1, step["width"])
    code.graph = code.graphs.get(size)
    decodes = code.decodes(rows, width, max(_LOWEST, step["value"]))
    code.graph.clone.prepare_graph_input_buffers(code.graph.buffers, decodes, encoder_decoder)
    label = f"a step of {rows} rows and {width} columns in the graph of {size}"
    return code.line(label, refused=rows > size or width > BLOCKS)


def _observe(names: dict[str, Any]) -> Outputs:
    """Return the buffers that a replay reads, concatenated by graph size, and the graphs."""
    graphs = [buffers for _, (_, buffers) in sorted(names["graphs"].items())]
    outputs: Outputs = {
        name: torch.cat([buffers[name] for buffers in graphs])
        for name in (graphs[0] if graphs else ())
    }
    return outputs | {
        "graphs": sorted(names["graphs"]),
        "clones capture": [captures(clone) for clone, _ in names["graphs"].values()],
        "graph_block_tables": names["runner"].graph_block_tables,
    }


def _diagnose(_call: Call, place: Place, expected: Any, got: Any) -> str:
    if place.field == "raises" and expected == "ValueError" and got is None:
        return "state stays in capturing mode"
    if place.field == "raises" and expected is None:
        return "state stays in capturing mode" if got == "ValueError" else ""
    if place.field == "clones capture":
        return "state stays in capturing mode"
    if not isinstance(expected, torch.Tensor) or getattr(got, "shape", None) != expected.shape:
        return ""
    wrong = got != expected
    earlier = (got[wrong] >= _LOWEST).all() and (expected[wrong] < _LOWEST).all()
    return "an earlier step's value kept" if earlier else ""


def _case(*steps: dict[str, Any], encoder_decoder: bool = False) -> Case:
    return Case(NAME, None, {"steps": list(steps), "encoder_decoder": encoder_decoder})


def _boundaries() -> Iterator[tuple[str, Case]]:
    end, fail = {"do": "end"}, {"do": "fail"}
    begin, graph = {"do": "begin", "rows": 3}, {"do": "graph", "rows": 2}
    large = {"do": "graph", "rows": 3}
    full = {"do": "prepare", "graph": 3, "rows": 3, "width": BLOCKS, "value": 20}
    small = {"do": "prepare", "graph": 3, "rows": 1, "width": 1, "value": 50}
    narrow = {"do": "prepare", "graph": 3, "rows": 3, "width": 2, "value": 50}
    for kind in (False, True):
        name = "encoder-decoder" if kind else "decoder"
        yield f"{name}: capture and replay", _case(begin, large, end, full, encoder_decoder=kind)
        yield (
            f"{name}: a smaller step after a full one (K13)",
            _case(begin, large, end, full, small, encoder_decoder=kind),
        )
        yield (
            f"{name}: narrower tables after a full step (K13)",
            _case(begin, large, end, full, narrow, encoder_decoder=kind),
        )
        yield (
            f"{name}: graphs of one capture share their buffers",
            _case(begin, graph, large, full, end, small, encoder_decoder=kind),
        )
    yield "graph outside a capture", _case(graph)
    yield "graph after the capture", _case(begin, end, graph)
    yield "exception inside the capture (K28)", _case(begin, graph, fail, graph)
    yield "capture after an exception (K28)", _case(begin, fail, begin, graph, end)
    yield "capture inside a capture", _case(begin, begin, graph, end, begin, end)
    yield "graph larger than the capture", _case(begin, {"do": "graph", "rows": 4}, graph)
    yield "capture larger than the runner", _case({"do": "begin", "rows": ROWS + 1}, graph)
    yield (
        "a second capture leaves the first one's graphs alone",
        _case(begin, large, end, full, {"do": "begin", "rows": 2}, graph, end),
    )
    wide = {"do": "prepare", "graph": 3, "rows": 3, "width": BLOCKS + 1, "value": 30}
    long = {"do": "prepare", "graph": 3, "rows": 4, "width": 1, "value": 30}
    yield "steps larger than the graph", _case(begin, large, end, full, wide, long)
    kinds: dict[str, list[dict[str, Any]]] = {"begin": [begin], "graph": [graph], "end": [end]}
    other = {"do": "prepare", "graph": 2, "rows": 1, "width": BLOCKS, "value": 80}
    kinds |= {"fail": [fail], "full step": [full], "small step": [small]}
    kinds |= {"step of the smaller graph": [other]}
    # Graphs of one capture share their buffers: the last step resets what any of them left.
    last = {"do": "prepare", "graph": 3, "rows": 2, "width": 2, "value": 110}
    for name, pairs in step_pairs(kinds, [end, begin, graph, large], [end, last]):
        yield name, _case(*pairs)


def _from_batch(batch: Batch) -> Iterator[Case]:
    """Yield a sequence with a row for each request, at most ROWS."""
    rows = min(ROWS, max(1, batch.num_requests))
    begin, graph = {"do": "begin", "rows": rows}, {"do": "graph", "rows": rows}
    step = {"do": "prepare", "graph": rows, "rows": rows, "width": 2, "value": 20}
    yield _case(begin, graph, {"do": "end"}, step)


graph_sequence = Operation(
    name=NAME,
    section="7",
    summary="V0 graphs captured, prepared and replayed in any order",
    inputs=sequence_inputs(
        params=_PARAMS, machine=_Machine, boundaries=_boundaries, from_batch=_from_batch
    ),
    call=SequenceCall(parts=("CommonAttentionState",), write=_script, observe=_observe),
    contract=Contract(diagnose=_diagnose),
    bench=Bench(never=SEQUENCE_NOT_TIMED),
    built_in=BuiltIn(malformed_steps=True),
)

OPERATIONS = (graph_sequence,)
