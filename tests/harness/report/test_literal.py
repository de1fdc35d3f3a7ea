"""Literals evaluate back to the case that they were made from."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnproof.harness.model.case import Batch, Case, decode, encode
from attnproof.harness.report.shared.literal import (
    IMPORTS,
    case_literal,
    example_line,
    shown_literal,
)
from tests.harness.report.runs import MIXED

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)
LENS = st.lists(st.integers(0, 9000), max_size=40).map(tuple)


@st.composite
def any_case(draw):
    lens = draw(LENS)
    batch = Batch(
        block_size=draw(st.integers(1, 256)),
        query_lens=lens,
        computed_lens=lens,
        blocks=tuple((i, i + 1) for i in range(len(lens))),
        strided=draw(st.booleans()),
        dtype=draw(st.sampled_from(["int32", "int64"])),
        logits_indices=draw(st.none() | LENS),
    )
    params = draw(st.dictionaries(st.text(max_size=8), VALUES, max_size=4))
    return Case("operation", draw(st.none() | st.just(batch)), params, draw(st.text(max_size=9)))


def evaluate(source):
    names = {}
    exec(IMPORTS, names)
    return eval(source, names)


@given(any_case())
def test_literal_evaluates_to_the_case(case):
    again = evaluate(case_literal(case))
    assert again == case
    assert repr(again) == repr(case)


def test_the_middle_of_a_long_list_is_left_out():
    case = Case("x", None, {"ids": list(range(32_768)), "rows": [[1], [2]], "last": 7})
    shown = shown_literal(case)
    assert len(shown.splitlines()) < 60
    assert re.search(r"\n +# 2,\d{3} lines left out; the case's file has them\n", shown)
    assert all(text in shown for text in (" 0, 1, 2,", " 32767,\n", "'rows': [[1], [2]]", "7"))
    assert shown_literal(Case("x", MIXED)) == case_literal(Case("x", MIXED))


@given(any_case())
def test_example_line_decorates_with_the_case(case):
    line = example_line(case)
    assert line.startswith("@example(")
    names = {"example": lambda case: lambda function: case}
    exec(f"{IMPORTS}\n{line}\ndef found(): ...", names)
    assert names["found"] == case


def test_small_literal_is_one_line():
    case = Case("get_mla_dims", None, {"heads": 4})
    assert case_literal(case) == "Case(operation='get_mla_dims', params={'heads': 4})"
    assert example_line(case) == f"@example({case_literal(case)})"


def test_literal_omits_defaults_and_breaks_lines():
    literal = case_literal(Case("build_slot_mapping", MIXED))
    assert "strided" not in literal
    assert "    query_lens=(1, 6, 0, 3),\n" in literal
    assert max(map(len, literal.splitlines())) <= 88


def test_steps_are_printed_one_per_line():
    case = Case("x", None, {"width": 2, "steps": [{"do": "get"}, {"do": "set", "to": "a"}]})
    assert case_literal(case) == (
        "Case(\n"
        "    operation='x',\n"
        "    params={\n"
        "        'width': 2,\n"
        "        'steps': [\n"
        "            {'do': 'get'},\n"
        "            {'do': 'set', 'to': 'a'},\n"
        "        ],\n"
        "    },\n"
        ")"
    )
    assert evaluate(case_literal(case)) == case


def test_long_tuples_are_packed():
    batch = Batch(16, (1,) * 2000, (0,) * 2000, ((3,),) * 2000)
    literal = case_literal(Case("x", batch))
    assert literal.count("\n") < 2300
    assert evaluate(literal).batch == batch


@pytest.mark.parametrize("number", [math.inf, -math.inf])
def test_floats_without_a_literal(number):
    case = Case("x", None, {"scale": number})
    assert evaluate(case_literal(case)) == case


def test_literal_of_a_decoded_case_is_the_same():
    case = Case("split_attn_metadata", MIXED, {"cuts": [1]})
    assert case_literal(decode(encode(case))) == case_literal(case)
