"""Sequence over SPEC.md section 7: the cache layout, set, read and overridden many times.

Bug class: the first layout that was read is kept, so that a later set is ignored (K27).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, Literal

from hypothesis import strategies as st
from hypothesis.stateful import rule

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
)

NAME = "layout_sequence"
_VARIABLE = "VLLM_KV_CACHE_LAYOUT"
_LAYOUT = st.sampled_from(("NHD", "HND"))


_READS = ("get", "get in a thread")
_PARAMS = sequence_params(
    {
        "set": [("layout", Literal["NHD", "HND"])],
        "set invalid": [("layout", Literal["NCHW", "nhd", "hnd", ""])],
        "export": [("layout", Literal["NHD", "HND", "NCHW", "nhd", "hnd", ""])],
        **{do: [] for do in ("unset", "unexport", *_READS)},
    }
)


_CHOICES: tuple[dict[str, str], ...] = (
    *({"do": do, "layout": layout} for do in ("set", "export") for layout in ("NHD", "HND")),
    {"do": "unset"},
    {"do": "unexport"},
)


class _Machine(Machine):
    operation = NAME

    @rule(layout=_LAYOUT)
    def set(self, layout: str) -> None:
        """Set a layout, as an engine does."""
        self.step("set", layout=layout)

    @rule()
    def unset(self) -> None:
        """Remove the layout that was set."""
        self.step("unset")

    @rule(layout=_LAYOUT)
    def export(self, layout: str) -> None:
        """Set a layout in the environment, as a user does."""
        self.step("export", layout=layout)

    @rule(word=st.sampled_from(("NCHW", "nhd", "")))
    def export_invalid(self, word: str) -> None:
        """Set an unknown layout in the environment."""
        self.step("export", layout=word)

    @rule()
    def unexport(self) -> None:
        """Remove the variable from the environment."""
        self.step("unexport")

    @rule()
    def get(self) -> None:
        """Read the layout, as a backend does."""
        self.step("get")

    @rule()
    def get_in_a_thread(self) -> None:
        """Read the layout as a connector does, in a thread of its own."""
        self.step("get in a thread")

    @rule(layout=st.sampled_from(("NCHW", "nhd", "")))
    def set_invalid(self, layout: str) -> None:
        """Set an unknown layout, which is refused and changes nothing."""
        self.step("set invalid", layout=layout)


def _line(step: dict[str, Any]) -> Line:
    code, layout, label = Code(), step.get("layout", ""), step["do"]
    match step["do"]:
        case "set":
            code.set_kv_cache_layout(layout)
            label = f"set {layout}"
        case "set invalid":
            code.set_kv_cache_layout(layout)
            label = f"set {layout!r}"
        case "unset":
            code.set_kv_cache_layout(None)
        case "export":
            code.environ.update({_VARIABLE: layout})
            label = f"export {layout or repr(layout)}"
        case "unexport":
            code.environ.pop(_VARIABLE, None)
            label = "remove the variable"
        case "get":
            code.layout = code.get_kv_cache_layout()
        case "get in a thread":
            code.pool = code.ThreadPoolExecutor(1)
            code.future = code.pool.submit(code.get_kv_cache_layout)
            code.layout = code.future.result()
            code.pool.shutdown()
            label = "get in another thread"
    return code.line(label, refused=step["do"] == "set invalid")


def _script(case: Case, _pattern: int) -> Script:
    """Return the program, which starts without the variable in the environment."""
    setup = Code()
    setup.environ.pop(_VARIABLE, None)
    setup.layout = None
    steps = case.params["steps"]
    # The error for an unknown layout is tested in `get_kv_cache_layout`.
    kept = [s for n, s in enumerate(steps) if s["do"] not in _READS or _readable(steps[:n])]
    imports = {"environ": "os", "ThreadPoolExecutor": "concurrent.futures"}
    return Script(imports, setup.statements, tuple(map(_line, kept)))


def _readable(steps: list[dict[str, Any]]) -> bool:
    """True if a layout is set after these steps, or the environment names no unknown one."""
    choices = [step for step in steps if step["do"] in ("set", "unset")]
    exported = [step for step in steps if step["do"] in ("export", "unexport")]
    chosen = bool(choices) and choices[-1]["do"] == "set"
    unknown = bool(exported) and exported[-1].get("layout", "NHD") not in ("NHD", "HND")
    return chosen or not unknown


def _observe(names: dict[str, Any]) -> Outputs:
    """Return the layout that was read last."""
    # Reading the layout here would itself be a step.
    return {"layout": names["layout"]}


def _diagnose(call: Call, _place: Place, expected: Any, got: Any) -> str:
    if isinstance(got, str) and got != expected and got in {"NHD", "HND"}:
        return "an earlier answer was kept" if _was_read(call) else "the layout of another source"
    return ""


def _was_read(call: Call) -> bool:
    """True if the layout was read before the wrong step, the last one of a shrunk case."""
    steps = call.facts.case.params["steps"]
    return sum(step["do"] in _READS for step in steps) > 1


def _case(*steps: dict[str, Any]) -> Case:
    return Case(NAME, None, {"steps": list(steps)})


def _boundaries() -> Iterator[tuple[str, Case]]:
    get, in_thread = {"do": "get"}, {"do": "get in a thread"}
    nhd, hnd = ({"do": "set", "layout": layout} for layout in ("NHD", "HND"))
    export = {"do": "export", "layout": "HND"}
    yield "default", _case(get)
    yield "set and read in two threads", _case(hnd, in_thread, nhd, in_thread, get)
    yield "set after the first get (K27)", _case(get, hnd, get)
    yield "environment after the first get", _case(get, export, get)
    yield "set goes before the environment", _case(export, nhd, get)
    yield "set what is in force already", _case(export, hnd, {"do": "export", "layout": "NHD"}, get)
    yield "every two choices", _case(*_two_choices())
    unknown = {"do": "export", "layout": "nhd"}
    yield "what is set goes before an unknown layout", _case(unknown, nhd, get)
    yield "unset falls back on the environment", _case(export, nhd, get, {"do": "unset"}, get)
    yield "refused layout changes nothing", _case(hnd, {"do": "set invalid", "layout": "hnd"}, get)


def _two_choices() -> Iterator[dict[str, Any]]:
    """Yield the steps of all programs of two choices, with a read after each."""
    for choices in product(_CHOICES, repeat=2):
        yield from ({"do": "unset"}, {"do": "unexport"})
        for choice in choices:
            yield from (choice, {"do": "get"})


def _from_batch(batch: Batch) -> Iterator[Case]:
    """Yield a case with one of the two layouts, by the number of requests."""
    yield _case({"do": "set", "layout": ("NHD", "HND")[batch.num_requests % 2]}, {"do": "get"})


layout_sequence = Operation(
    name=NAME,
    section="7",
    summary="the cache layout set, exported and read in any order",
    inputs=sequence_inputs(
        params=_PARAMS, machine=_Machine, boundaries=_boundaries, from_batch=_from_batch
    ),
    call=SequenceCall(
        parts=("get_kv_cache_layout", "set_kv_cache_layout"),
        write=_script,
        observe=_observe,
        isolated=True,
        poisons=False,
    ),
    contract=Contract(diagnose=_diagnose),
    bench=Bench(never=SEQUENCE_NOT_TIMED),
    built_in=BuiltIn(shared="one global value: there is nothing to make faster"),
)

OPERATIONS = (layout_sequence,)
