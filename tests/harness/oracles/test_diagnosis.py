"""Diagnoses name the likely cause of wrong values of any type."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.model.call import MISSING, Facts, Quantity
from attnproof.harness.model.case import Case
from attnproof.harness.oracles.diagnosis import diagnose, is_overflow
from attnproof.harness.oracles.known_mistakes import Context

BATCH = make_batch([3, 2], [5, 4], 4, padded_requests=1)
CONTEXT = Context(Case("build_slot_mapping", BATCH), Facts(tokens=5, result=Quantity.SLOTS))


def ints(*values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize(
    ("field", "expected", "got", "words"),
    [
        ("causal", True, MISSING, "lost field"),
        ("causal", True, False, "the opposite answer"),
        ("num_reqs", 3, None, "lost field"),
        ("num_reqs", 3, np.int64(3), "numpy.int64 where a Python int was expected"),
        ("num_decodes", 3, 2, "zero-length (padded) rows miscounted"),
        ("num_reqs", 3, 4, "off by one request"),
        ("seq_lens", ints(8, 6), [8, 6], "list where a tensor was expected"),
        ("seq_lens", ints(8, 6), ints(8, 6, dtype=torch.int16), "narrowed dtype"),
        ("seq_lens", ints(8, 6), ints(8, 6, dtype=torch.int64), "another dtype"),
        ("seq_lens", ints(8, 6), torch.tensor([8.0, 6.0], dtype=torch.bfloat16), "narrowed dtype"),
        ("seq_lens", ints(8, 6), ints(8), "1 too few entries"),
        ("seq_lens", ints(8, 6), ints(6, 8), "wrong order"),
        ("seq_lens", ints(8, 6), ints(9, 6), "off by one token"),
        ("seq_lens", ints(8, 6), ints(0x5A5A5A5B, 6), "stale entry read"),
        ("out", ints(8, 6), ints(8, 0x5A5B5A5B), "an entry left unwritten"),
        ("out", ints(8, 6), ints(0x5A5B5A5B, 0x5A5B5A5B), "the whole output left unwritten"),
        ("out", ints(8, 0x5A5A5A5B), ints(8, 0), "writes an entry that must keep its value"),
        ("seq_lens", ints(8, 6), ints(0x5C5C5C5C, 6), "memory returned that was never written"),
        ("encoder_seq_lens", np.array([3]), np.array([3], dtype=np.int16), "narrowed dtype"),
        ("encoder_seq_lens", np.array([3]), [3], "list where"),
        ("num_computed_tokens_cpu", ints(7), ints(5), "computed tokens of a continued request"),
        ("block_table_tensor", ints(0).view(1, 1), ints(1).view(1, 1), "off by one block"),
        ("block_table_tensor", ints(0).view(1, 1), ints(2).view(1, 1), "another request's block"),
        ("block_table_tensor", ints(0).view(1, 1), ints(77).view(1, 1), "a block that no request"),
        ("slot_mapping", ints(5), ints(-1), "token without its slot"),
        ("slot_mapping", ints(-1), ints(5), "a slot for an entry that must have none"),
        ("slot_mapping", ints(5), ints(9), "another request's block"),
        ("slot_mapping", ints(1), ints(5), "off by one block"),
        ("slot_mapping", ints(-1, 1), ints(3, 5), "wrong slot"),
        ("out", torch.tensor([0.25]), torch.tensor([0.5]), "out is wrong"),
    ],
)
def test_diagnosis(field, expected, got, words):
    assert diagnose(CONTEXT, field, expected, got)[0].startswith(words)


def test_wrapped_slot():
    wide = torch.tensor([2**33 + 4])
    assert is_overflow(wide, wide.int().long())
    assert not is_overflow(wide, wide + 1)
    assert not is_overflow(wide, wide)
    mixed = torch.tensor([2**33 + 4, 7])
    assert not is_overflow(mixed, torch.tensor([4, 8]))


def test_a_wrapped_dividend_is_no_block_too_few():
    size = 1 << 16
    context = Context(Case("x", make_batch([1], [0], size), {"parts": size}), Facts())
    right = torch.tensor([40_000, 7])
    wrapped, other = right - torch.tensor([size, 0]), right - torch.tensor([size, 1])
    divided = "32-bit overflow before a division"
    assert diagnose(context, "result", right, wrapped) == (divided, (divided,))
    assert diagnose(context, "result", right, other) == ("result too small", ())


@pytest.mark.parametrize(
    ("quantity", "words"),
    [
        (Quantity.OFFSETS, "not rebased"),
        (Quantity.SLOTS, "wrong slot"),
        (Quantity.OTHER, "result too large"),
    ],
)
def test_a_result_is_diagnosed_by_its_quantity(quantity, words):
    context = Context(Case("slice_query_start_locs"), Facts(result=quantity))
    assert diagnose(context, "result", ints(0, 2), ints(3, 5))[0] == words


def test_mistakes_beside_an_overflow_or_behind_a_short_row_are_found():
    case = Case("build_slot_mapping", BATCH, {"columns": 1})
    context, beyond = Context(case, CONTEXT.facts), "a slot for a position beyond its block-table"
    for right, wrong in (([2**38 - 1, -1], [-1, 6]), ([4, -1], [4, 0x5A5A5A5A])):
        _, fits = diagnose(context, "result", torch.tensor(right), torch.tensor(wrong))
        assert any(text.startswith(beyond) for text in fits)
