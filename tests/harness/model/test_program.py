"""Programs as data: what is run and what is shown are the same calls."""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnproof.harness.model.program import (
    Code,
    Do,
    Let,
    Line,
    Name,
    Script,
    import_names,
    run,
    source,
)

LITERALS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = st.integers() | st.text()
VALUES = st.recursive(
    LITERALS | st.builds(slice, st.none() | st.integers(), st.integers()),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(KEYS, inner)
        | st.just(Name("given.value"))
        | st.builds(lambda args, last: Do("pack", args, {"last": last}), st.lists(inner), inner)
    ),
)


def names():
    return {
        "given": SimpleNamespace(value=7, calls=[]),
        "pack": lambda *args, last: ["packed", *args, last],
        "inf": float("inf"),
    }


@given(VALUES)
def test_what_is_shown_is_what_is_run(value):
    statements = [Let("made", value), Let("given.value", 8), Do("given.calls.append", (value,))]
    ran, shown = names(), names()
    run(statements, ran)
    exec(source(statements), shown)
    assert ran["made"] == shown["made"]
    assert ran["given"] == shown["given"]


def test_a_program_is_written_as_a_person_would():
    code, lens = Code(), [1, 2]
    code.row = code.batch.add_request("a", lens, 3)
    lens.clear()
    code.engine.lists = {"a": (1,), 2: slice(0, 4)}
    code.build(code.metadata.seq_lens, [code.cut(1)], out={1: code.slots})
    code.tokens[0, 1:2] = code.tensor([7])
    code.capture.__enter__()
    assert code.line("steps").code == (
        "row = batch.add_request('a', [1, 2], 3)\n"
        "engine.lists = {'a': (1,), 2: slice(0, 4, None)}\n"
        "build(metadata.seq_lens, [cut(1)], out={1: slots})\n"
        "tokens.__setitem__((0, slice(1, 2, None)), tensor([7]))\n"
        "capture.__enter__()"
    )


@pytest.mark.parametrize("name", ["line", "statements", "_path"])
def test_a_name_of_code_itself_is_no_variable(name):
    code = Code()
    with pytest.raises(AttributeError, match=f"^{name} is a name of Code: give the variable"):
        setattr(code, name, 1)
    assert code.statements == []


def test_equal_calls_are_separate_statements():
    code = Code()
    code.rows.append(code.pop())
    code.pop()
    code.first, code.second = code.pop(), code.pop()
    lines = ["rows.append(pop())", "pop()", "first = pop()", "second = pop()"]
    assert source(code.statements).splitlines() == lines
    assert code.line("pop", refused=True)[::2] == ("pop, which is refused", True)


def test_text_of_a_case_stays_text():
    words = '\'); import os; os._exit(1) #\n"""'
    shown = {}
    exec(source([Let("made", [words, {words: words}])]), shown)
    assert shown["made"] == [words, {words: words}]


class Shown(str):
    __slots__ = ()

    def __repr__(self):
        return "run_me()"


@pytest.mark.parametrize(
    "value", [Shown("a"), np.int64(1), object(), len, OrderedDict, {Shown("a"): 1}, b"bytes"]
)
def test_only_literals_are_data(value):
    with pytest.raises(TypeError, match="is no literal of a program"):
        source([Let("made", value)])


def test_every_run_has_lists_of_its_own():
    code = Code()
    code.rows = [[]]
    code.rows.append(1)
    for _ in range(2):
        variables = {}
        run(code.statements, variables)
        assert variables["rows"] == [[], 1]


def test_a_script_knows_its_names_and_imports_them():
    lines = (Line("end", [Do("call", ([Name("other.part")],), {"key": {1: Name("third")}})]),)
    script = Script({"pi": "math"}, [Let("made.at", 1)], lines)
    assert script.names == {"made", "call", "other", "third"}
    assert import_names(script) == {"pi": pytest.approx(3.1416, abs=1e-4)}
    assert script.setup_code == "from math import pi\n\nmade.at = 1"
    assert script.lines[0].code == "call([other.part], key={1: third})"
