"""Sequences of SPEC.md section 17: graphs of state-space layers, captured and replayed.

Bug classes: fields that lie where no graph looks (K59), states of an earlier step in rows that a
smaller step leaves (K60), states of one group in the metadata of another (K61).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import torch
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from msgspec import Meta

from attnproof import reference
from attnproof.harness.cases.engines import script_states
from attnproof.harness.cases.engines.script_states import ROWS
from attnproof.harness.cases.machine import Machine
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.operation import Bench, Contract, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.program import Code, Line, Script
from attnproof.harness.operations.shared.params import sequence_params
from attnproof.harness.operations.shared.sequence import (
    SEQUENCE_NOT_TIMED,
    SequenceCall,
    sequence_inputs,
)
from attnproof.harness.operations.state_space.state_builders import outputs_of

NAME = "state_graph_sequence"
_LAYERS = {
    "mamba1": reference.MambaMetadata,
    "mamba2": reference.MambaMetadata,
    "short_conv": reference.MambaMetadata,
    "gdn": reference.GDNMetadata,
    "kda": reference.KDAMetadata,
    "ple_short_conv": reference.PLEShortConvMetadata,
    "linear": reference.LinearMetadata,
    "bailing": reference.BailingMetadata,
}
_WITHOUT_DRAFTS = ("mamba1", "linear")
_LONGEST = 6
"""Computed tokens of a row, at most."""
_Rows = Annotated[int, Meta(ge=1, le=ROWS)]
_Few = Annotated[list[Annotated[int, Meta(ge=0, le=_LONGEST)]], Meta(max_length=ROWS)]
_Layer = Literal[
    "mamba1", "mamba2", "short_conv", "gdn", "kda", "ple_short_conv", "linear", "bailing"
]
_PARAMS = sequence_params(
    {
        "capture": [("rows", _Rows)],
        "replay": [("graph", _Rows), ("computed", _Few), ("in_prompt", bool)],
        "mixed": [("decodes", _Few), ("prompts", _Few)],
    },
    [
        ("layer", _Layer, "mamba2"),
        ("drafts", Annotated[int, Meta(ge=0, le=2)], 0),
        ("mode", Literal["align", "none"], "align"),
    ],
)
_COMPUTED = st.integers(1, _LONGEST)


class _Machine(Machine):
    operation = NAME

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    @initialize(
        layer=st.sampled_from(tuple(_LAYERS)),
        drafts=st.integers(0, 2),
        mode=st.sampled_from(("align", "none")),
        rows=st.integers(1, ROWS),
    )
    def begin(self, layer: str, drafts: int, mode: str, rows: int) -> None:
        """Choose the layers, and capture a graph."""
        drafts = 0 if layer in _WITHOUT_DRAFTS else drafts
        self.params |= {"layer": layer, "drafts": drafts, "mode": mode}
        self.capture(rows)

    def capture(self, rows: int) -> None:
        """Capture a graph."""
        self.step("capture", rows=rows)
        self.sizes.append(rows)

    @rule(rows=st.integers(1, ROWS))
    def capture_another(self, rows: int) -> None:
        """Capture another graph."""
        self.capture(rows)

    @precondition(lambda self: self.sizes)
    @rule(
        graph=st.integers(0, 3),
        computed=st.lists(_COMPUTED, min_size=1, max_size=ROWS),
        in_prompt=st.booleans(),
    )
    def replay(self, graph: int, computed: list[int], in_prompt: bool) -> None:
        """Replay a graph for as many rows or fewer."""
        size = self.sizes[graph % len(self.sizes)]
        self.step("replay", graph=size, computed=computed[:size], in_prompt=in_prompt)

    @rule(
        decodes=st.lists(_COMPUTED, max_size=2),
        prompts=st.lists(st.integers(0, _LONGEST), min_size=1, max_size=2),
    )
    def mixed(self, decodes: list[int], prompts: list[int]) -> None:
        """Build for decodes and prefills without a graph."""
        self.step("mixed", decodes=decodes, prompts=prompts)


def _script(case: Case, _pattern: int) -> Script:
    params, setup = {"layer": "mamba2", "drafts": 0, "mode": "align"} | case.params, Code()
    config = setup.state_config(params["layer"], params["drafts"], params["mode"])
    setup.runner = setup.StateRunner(config, setup.StateSpaceBuilder)
    module = script_states.__name__
    imports = {"StateRunner": module, "state_config": module}
    return Script(imports, setup.statements, tuple(_lines(params)))


def _lines(params: dict[str, Any]) -> Iterator[Line]:
    sizes, query = set[int](), 1 + params["drafts"]
    for step in params["steps"]:
        code = Code()
        if step["do"] == "capture":
            sizes.add(step["rows"])
            code.runner.capture(step["rows"])
            yield code.line(f"capture a graph of {step['rows']} rows")
        elif step["do"] == "mixed" and step["decodes"] + step["prompts"]:
            rows = [(1, max(1, c), False) for c in step["decodes"]]
            rows += [(4 + c % 3, c, True) for c in sorted(step["prompts"], reverse=True)]
            code.runner.step(rows[:ROWS])
            yield code.line(f"a step of {len(rows[:ROWS])} rows without a graph")
        elif step["do"] == "replay" and step["graph"] in sizes and step["computed"]:
            rows = [(query, max(1, c), step["in_prompt"]) for c in step["computed"]]
            rows = rows[: step["graph"]]
            code.runner.step(rows, step["graph"])
            yield code.line(f"replay the graph of {step['graph']} rows for {len(rows)}")


def _observe(names: dict[str, Any]) -> Outputs:
    """Return the results of the last step, and what the graph that it replays reads."""
    runner, outputs = names["runner"], Outputs()
    layer = runner.config.layer
    held = {"built": runner.built, "graph": runner.graphs.get(runner.replayed, [])}
    for kind, results in held.items():
        for group, result in enumerate(results):
            values = outputs_of(_LAYERS[layer], layer, result)
            for name, value in values.items():
                # Numbers are constants of a graph.
                if kind == "built" or isinstance(value, torch.Tensor):
                    outputs[f"{kind}[{group}].{name}"] = value
    return outputs


def _diagnose(_call: Call, place: Place, expected: Any, got: Any) -> str:
    tensors = isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor)
    if not tensors or not place.field.startswith("graph"):
        return ""
    return "a replayed graph reads what an earlier step left: the tensor is not persistent"


def _case(*steps: dict[str, Any], layer: str, drafts: int = 0, mode: str = "align") -> Case:
    return Case(NAME, None, {"steps": [*steps], "layer": layer, "drafts": drafts, "mode": mode})


def _boundaries() -> Iterator[tuple[str, Case]]:
    capture: dict[str, Any] = {"do": "capture", "rows": 3}
    full: dict[str, Any] = {"do": "replay", "graph": 3, "computed": [3, 1, 4], "in_prompt": False}
    fewer = full | {"computed": [2]}
    tail = full | {"computed": [4, 3], "in_prompt": True}
    mixed = {"do": "mixed", "decodes": [2, 5], "prompts": [3, 0]}
    for layer in _LAYERS:
        for drafts in (0,) if layer in _WITHOUT_DRAFTS else (0, 2):
            words = f"{layer}, {drafts} drafts"
            sizes: Any = {"layer": layer, "drafts": drafts}
            steps = [capture, full, fewer, mixed, tail, mixed, full]
            yield f"{words}: full, fewer and mixed steps", _case(*steps, **sizes)
            yield f"{words}: mode none", _case(*steps, **sizes, mode="none")
            smaller = [{"do": "capture", "rows": 1}, capture, full, fewer | {"graph": 1}, fewer]
            yield f"{words}: two graphs", _case(*smaller, **sizes)


def _from_batch(batch: Batch) -> Iterator[Case]:
    """Yield the replay of a graph for the first requests of a batch."""
    computed = [1 + c % _LONGEST for c in batch.computed_lens[:ROWS]] or [1]
    replay = {"do": "replay", "graph": ROWS, "computed": computed, "in_prompt": False}
    yield _case({"do": "capture", "rows": ROWS}, replay, layer="gdn")


state_graph_sequence = Operation(
    name=NAME,
    section="17",
    summary="builds the metadata that graphs of state-space layers read, for one group or two",
    inputs=sequence_inputs(
        params=_PARAMS, machine=_Machine, boundaries=_boundaries, from_batch=_from_batch
    ),
    call=SequenceCall(parts=("StateSpaceBuilder",), write=_script, observe=_observe),
    contract=Contract(diagnose=_diagnose),
    bench=Bench(never=SEQUENCE_NOT_TIMED),
)

OPERATIONS = (state_graph_sequence,)
