"""Meanings of the parameters of cases, from docstrings and definitions."""

from __future__ import annotations

import pytest

from attnproof.harness.model.case import Case
from attnproof.harness.operations import ALL
from attnproof.harness.report.shared.parameters import meanings


@pytest.mark.parametrize(
    ("operation", "parameter", "meaning"),
    [
        ("decode_attention", "group", "Query heads of a kv head"),  # a field of a base class
        ("split_decodes_and_prefills", "decode_threshold", "A decode has at most"),
        ("BlockTables", "cp_rank", "Under context parallelism"),  # of a method, among others
        ("CommonAttentionState", "pad", "padded rows of the engine step"),  # of `_case`
        ("CommonMetadataBuilder", "hits", "Rows of prompts whose first blocks"),  # of `Step`
        ("copy_and_expand_eagle_inputs", "spare", "Entries behind those that are read"),
        ("get_dcp_lens", "lens", "numbers (L) int32|int64"),
        ("get_dcp_lens", "size_L", "Size of the axis L"),
        ("get_dcp_lens", "with_start", "True if start is given"),
        ("get_dcp_lens", "layout", "Memory layout of the arguments of a case"),
    ],
)
def test_a_meaning_comes_from_where_the_parameter_is_declared(operation, parameter, meaning):
    assert meanings(Case(operation, None))[parameter].startswith(meaning)


def test_every_operation_has_meanings_of_bounded_length():
    for name in ALL:
        for text in meanings(Case(name, None)).values():
            assert text
            assert len(text) < 160


def test_most_parameters_have_a_meaning():
    names = [(name, field) for name in ALL for field in ALL[name].inputs.params.__struct_fields__]
    known = {name: meanings(Case(name, None)).keys() for name in ALL}
    without = [f"{name}.{field}" for name, field in names if field not in known[name]]
    assert len(without) < 0.25 * len(names), without


def test_an_unknown_operation_has_none():
    assert meanings(Case("of another release", None)) == {}
