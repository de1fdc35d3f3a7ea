"""Programs as data: what is run and what is shown are the same calls."""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnproof.harness.model.program import Let, Line, Name, Script, do, import_names, run, source

LITERALS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = st.integers() | st.text()
VALUES = st.recursive(
    LITERALS | st.builds(slice, st.none() | st.integers(), st.integers()),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(KEYS, inner)
        | st.just(Name("given.value"))
        | st.builds(lambda args, last: do("pack", *args, last=last), st.lists(inner), inner)
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
    statements = [Let("made", value), Let("given.value", 8), do("given.calls.append", value)]
    ran, shown = names(), names()
    run(statements, ran)
    exec(source(statements), shown)
    assert ran["made"] == shown["made"]
    assert ran["given"] == shown["given"]


def test_a_program_is_written_as_a_person_would():
    statements = [
        Let("row", do("batch.add_request", "a", [1, 2], 3)),
        Let("engine.lists", {"a": (1,), 2: slice(0, 4)}),
        do("build", Name("metadata.seq_lens"), do("cut", 1), out=Name("slots")),
    ]
    assert source(statements) == (
        "row = batch.add_request('a', [1, 2], 3)\n"
        "engine.lists = {'a': (1,), 2: slice(0, 4, None)}\n"
        "build(metadata.seq_lens, cut(1), out=slots)"
    )


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
    statements = [Let("made", [[]]), do("made.append", 1)]
    for _ in range(2):
        found = {}
        run(statements, found)
        assert found["made"] == [[], 1]


def test_a_script_knows_its_names_and_imports_them():
    lines = (Line("end", [do("call", [Name("other.part")], key={1: Name("third")})]),)
    script = Script({"pi": "math"}, [Let("made.at", 1)], lines)
    assert script.names == {"made", "call", "other", "third"}
    assert import_names(script) == {"pi": pytest.approx(3.1416, abs=1e-4)}
    assert script.setup_code == "from math import pi\n\nmade.at = 1"
    assert script.lines[0].code == "call([other.part], key={1: third})"
