"""Sequences of SPEC.md section 7 (oracle 7): one V0 builder used for many batches.

Bug classes: a list that `prepare` does not clear, metadata that changes when a later
batch reuses its buffer, a builder that an error leaves half filled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import torch
from hypothesis import strategies as st
from hypothesis.stateful import rule

from attnproof.harness.cases.engines import script_v0
from attnproof.harness.cases.engines.script_v0 import BLOCK_SIZE, BLOCKS, ROWS
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
from attnproof.harness.operations.v0.metadata_builder import metadata_v0_outputs

NAME = "builder_sequence"
_IMPORTS = dict.fromkeys(
    ("builder_class", "clear_tables", "input_builder", "request"), script_v0.__name__
)
_OBSERVED = 3
"""Number of batches, the latest, whose metadata is observed after each step."""
_Row = tuple[int, int]
"""Query and context tokens of a sequence."""
_ROW = st.tuples(st.sampled_from((1, 1, 1, 2, 5)), st.sampled_from((0, 1, 3, 6))).map(list)


_QUERY = Annotated[int, msgspec.Meta(ge=1, le=1024)]
_CONTEXT = Annotated[int, msgspec.Meta(ge=0, le=1024)]
_ROWS = Annotated[list[tuple[_QUERY, _CONTEXT]], msgspec.Meta(max_length=64)]
_IMAGE = ("image", bool, False)
_PAD = Annotated[int, msgspec.Meta(ge=-1, le=1024)]
_PARAMS = sequence_params(
    {
        "prepare": [],
        "add nonsense": [],
        "add": [("rows", _ROWS), _IMAGE],
        "build": [("rows", _ROWS), ("pad", _PAD), _IMAGE, ("wrong", bool, False)],
    }
)


class _Machine(Machine):
    operation = NAME

    @rule()
    def prepare(self) -> None:
        """Begin the next batch."""
        self.step("prepare")

    @rule(row=_ROW, image=st.booleans())
    def add(self, row: list[int], image: bool) -> None:
        """Add a sequence group directly, as some backends do."""
        self.step("add", rows=[row], image=image)

    @rule(
        rows=st.lists(_ROW, min_size=1, max_size=3),
        pad=st.sampled_from((-1, -1, 0, 1)),
        image=st.booleans(),
    )
    def build(self, rows: list[list[int]], pad: int, image: bool) -> None:
        """Build metadata of a batch, which is refused if no graph holds it."""
        self.step("build", rows=rows, pad=pad, image=image)

    @rule(rows=st.lists(_ROW, min_size=1, max_size=2), image=st.booleans())
    def run(self, rows: list[list[int]], image: bool) -> None:
        """Prepare and build, as an engine does in each engine step."""
        self.step("prepare")
        self.step("build", rows=rows, pad=-1, image=image)

    @rule(contexts=st.lists(st.integers(1, 8), min_size=1, max_size=3), pad=st.integers(0, 1))
    def run_graph(self, contexts: list[int], pad: int) -> None:
        """Prepare and build decodes that a graph holds."""
        self.step("prepare")
        self.step("build", rows=[[1, context] for context in contexts], pad=pad)

    @rule(rows=st.lists(_ROW, min_size=1, max_size=2), image=st.booleans())
    def build_other_lengths(self, rows: list[list[int]], image: bool) -> None:
        """Pass lengths of another batch, which must be refused and add nothing."""
        self.step("build", rows=rows, pad=-1, wrong=True, image=image)

    @rule()
    def add_nonsense(self) -> None:
        """Add a decode of two tokens, which must be refused and add nothing."""
        self.step("add nonsense")


def _script(case: Case, _pattern: int) -> Script:
    setup = Code()
    setup.Builder = setup.builder_class(setup.CommonMetadataBuilder)
    setup.engine = setup.input_builder()
    setup.builder = setup.Builder(setup.engine)
    setup.made = []
    return Script(_IMPORTS, setup.statements, tuple(_lines(case.params["steps"])))


def _lines(steps: list[dict[str, Any]]) -> Iterator[Line]:
    added: list[_Row] = []  # since `prepare`
    number = 0  # of the next request
    for step in steps:
        code = Code()
        rows = [(query_len, context_len) for query_len, context_len in step.get("rows", ())]
        image = {"image": True} if step.get("image") else {}
        requests = [(number + index, *row) for index, row in enumerate(rows)]
        number += len(rows)
        if step["do"] == "prepare":
            added = []
            code.builder.prepare()
            yield code.line("prepare", kind="prepare")
        elif step["do"] == "add":
            added += rows
            for request in requests:
                code.group = code.request(*request, **image)
                code.builder._add_seq_group(code.group, True)
                code.clear_tables(code.group)  # the engine's own
            yield code.line(f"add {_described(rows)}")
        elif step["do"] == "add nonsense":
            code.group = code.request(99, 1, 3)
            code.group.query_lens = [2]
            code.builder._add_seq_group(code.group, True)
            yield code.line("add a decode of two tokens", refused=True)
        elif rows:
            refused = _is_refused(step, added + rows)
            code.engine.inter_data_list = [code.request(*request, **image) for request in requests]
            label = f"build {_described(rows)}{_build(code, step, added + rows)}"
            yield code.line(label, refused=refused)
            added = added if refused else added + rows


def _described(rows: list[_Row]) -> str:
    return ", ".join(f"{query_len} of {query_len + context}" for query_len, context in rows)


def _is_refused(step: dict[str, Any], rows: list[_Row]) -> bool:
    """True if the lengths are of another batch, or if a graph cannot hold the rows."""
    if step.get("wrong"):
        return True
    if step["pad"] == -1:
        return False
    fits = all(query_len == 1 and 0 < context < BLOCKS * BLOCK_SIZE for query_len, context in rows)
    return not fits or len(rows) + step["pad"] > ROWS


def _build(code: Code, step: dict[str, Any], rows: list[_Row]) -> str:
    """Build metadata of the rows; return the kind of graph as words."""
    pad = step["pad"]
    seq_lens = [query_len + context for query_len, context in rows] + [1] * max(0, pad)
    query_lens = [query_len for query_len, _ in rows]
    if step.get("wrong"):
        query_lens.append(1)
    code.seq_lens, code.query_lens = seq_lens, query_lens
    code.made.append(code.builder.build(code.seq_lens, code.query_lens, pad, len(seq_lens)))
    code.seq_lens.clear()  # an engine reuses its lists
    code.query_lens.clear()
    return "" if pad == -1 else f" for a graph with {pad} padded rows"


def _observe(names: dict[str, Any]) -> Outputs:
    """Return the latest metadata by field, and earlier metadata, which may not change."""
    outputs: Outputs = {"builds": len(names["made"])}
    for metadata in names["made"][-1:]:
        outputs |= metadata_v0_outputs(metadata)
    earlier = [metadata_v0_outputs(metadata) for metadata in names["made"][-_OBSERVED:-1]]
    for name in earlier[0] if earlier else ():
        outputs[f"earlier.{name}"] = [_plain(fields[name]) for fields in earlier]
    return outputs


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor) else value


def _diagnose(call: Call, place: Place, _expected: Any, _got: Any) -> str | tuple[str, ...]:
    if place.field.startswith("earlier."):
        return "metadata of an earlier batch changed"
    assert place.step is not None
    lines = call["script"].lines[: place.step + 1]
    prepared = any(line.kind == "prepare" for line in lines[1:])
    known = place.field not in ("raises", "builds") and prepared
    earlier = "an earlier batch left behind" if known else ""
    if any(line.raises for line in lines[:-1]):
        return "a refused batch left behind", earlier
    return earlier


def _case(*steps: dict[str, Any]) -> Case:
    return Case(NAME, None, {"steps": list(steps)})


def _boundaries() -> Iterator[tuple[str, Case]]:
    prepare, nonsense = {"do": "prepare"}, {"do": "add nonsense"}
    prompts = {"do": "build", "rows": [[5, 0], [2, 6]], "pad": -1, "image": True}
    decodes = {"do": "build", "rows": [[1, 3], [1, 6]], "pad": -1}
    graph = {"do": "build", "rows": [[1, 6], [1, 1]], "pad": 1}
    short = {"do": "build", "rows": [[1, 1]], "pad": 1}
    wrong = {"do": "build", "rows": [[1, 1]], "pad": -1, "wrong": True}
    add = {"do": "add", "rows": [[5, 1]]}
    yield "prompts, then decodes", _case(prompts, prepare, decodes)
    yield "decodes, then prompts", _case(decodes, prepare, prompts)
    yield "images, then images", _case(prompts, prepare, prompts)
    yield "graph, then a shorter one (K18)", _case(graph, prepare, short)
    yield "graph and no graph in turn", _case(decodes, prepare, graph, prepare, prompts)
    yield "a second build without prepare", _case(decodes, decodes, prompts)
    yield "groups added before the build", _case(add, add, decodes, prepare, add, prepare, graph)
    yield "refused lengths leave nothing behind", _case(wrong, decodes, wrong, prepare, prompts)
    yield "a refused group leaves nothing behind", _case(nonsense, decodes, nonsense, add, prompts)
    images = {"do": "add", "rows": [[5, 0]], "image": True}
    yield (
        "refused images leave nothing behind",
        _case(images, wrong | {"rows": [[5, 0]], "image": True}, decodes),
    )
    yield (
        "a refused graph leaves nothing behind",
        _case({"do": "build", "rows": [[5, 0]], "pad": 0}, graph),
    )
    yield from _pairs()


def _pairs() -> Iterator[tuple[str, Case]]:
    """Yield pairs of steps of a new batch, and a build after them."""
    kinds: dict[str, list[dict[str, Any]]] = {
        "prepare": [{"do": "prepare"}],
        "refused group": [{"do": "add nonsense"}],
        "decode": [{"do": "add", "rows": [[1, 3]]}],
        "prompt": [{"do": "add", "rows": [[5, 1]], "image": True}],
        "build": [{"do": "build", "rows": [[2, 6], [1, 4]], "pad": -1}],
        "graph": [{"do": "build", "rows": [[1, 6]], "pad": 1}],
        "refused build": [{"do": "build", "rows": [[1, 1]], "pad": -1, "wrong": True}],
    }
    after = [{"do": "build", "rows": [[1, 2]], "pad": -1}]
    for name, steps in step_pairs(kinds, kinds["prepare"], after):
        yield name, _case(*steps)


def _from_batch(batch: Batch) -> Iterator[Case]:
    """Yield a sequence that builds the batch's requests, three at a time."""
    lens = zip(batch.query_lens, batch.computed_lens, strict=True)
    rows = [[min(query_len, 40), min(computed, 90)] for query_len, computed in lens if query_len]
    steps: list[dict[str, Any]] = []
    for first in range(0, min(len(rows), 9), 3):
        build = {"do": "build", "rows": rows[first : first + 3], "pad": -1}
        steps += [{"do": "prepare"}, build]
    yield _case(*(steps or [{"do": "prepare"}]))


builder_sequence = Operation(
    name=NAME,
    section="7",
    summary="one V0 builder for many batches, with graphs and without",
    inputs=sequence_inputs(
        params=_PARAMS, machine=_Machine, boundaries=_boundaries, from_batch=_from_batch
    ),
    call=SequenceCall(parts=("CommonMetadataBuilder",), write=_script, observe=_observe),
    contract=Contract(diagnose=_diagnose),
    bench=Bench(never=SEQUENCE_NOT_TIMED),
    built_in=BuiltIn(malformed_steps=True),
)

OPERATIONS = (builder_sequence,)
