"""Tests of what the contract of handed-out slots leaves free (SPEC.md section 15)."""

from __future__ import annotations

import pytest

from attnproof import reference
from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.model.case import Case
from attnproof.harness.operations import ALL
from attnproof.harness.oracles import judge
from attnproof.harness.oracles.trial import Trial

BATCH = make_batch([6, 1, 5], [2, 4, 0], 4, order="shuffled")


def failures(function, spare=2, name="alloc_extend"):
    case = Case(name, BATCH, {"spare": spare})
    trial = Trial(ALL[name], case, function, getattr(reference, name), "cpu")
    return {(failure.oracle, failure.diagnosis) for failure in judge(trial).failures}


def test_requests_may_get_any_of_the_first_free_pages():
    def backwards(prefixes, lengths, last, free, out, page_size):
        needed = int((-(-lengths // page_size) - -(-prefixes // page_size)).sum())
        reference.alloc_extend(prefixes, lengths, last, free[:needed].flip(0), out, page_size)

    assert failures(backwards) == set()


def test_pages_behind_the_first_free_ones_stay_free():
    def late(prefixes, lengths, last, free, out, page_size):
        reference.alloc_extend(prefixes, lengths, last, free.flip(0), out, page_size)

    assert failures(late) == {("invariants", "takes a page behind the first free ones")}


def test_a_page_that_two_requests_get():
    def one_page(prefixes, lengths, last, free, out, page_size):
        reference.alloc_extend(prefixes, lengths, last, free, out, page_size)
        out[6:7] = out[7] // page_size * page_size

    found = failures(one_page)
    assert ("invariants", "hands out a slot twice") in found
    assert ("invariants", "does not keep a page's tokens together") in found
    assert ("consumer", "writes two tokens to one slot") in found


@pytest.mark.parametrize("wrong", [-1, 1])
def test_slots_beside_the_prefix(wrong):
    def beside(prefixes, lengths, last, free, out, page_size):
        reference.alloc_extend(prefixes, lengths, last, free, out, page_size)
        out[:2] += wrong

    oracles = {oracle for oracle, _ in failures(beside)}
    assert oracles == {"equality", "invariants", "consumer"}


def test_the_wrong_place_in_a_page():
    def shifted(lengths, last, free, out, page_size):
        reference.alloc_decode(lengths, last, free, out, page_size)
        out[2] += 1

    found = failures(shifted, name="alloc_decode")
    assert found >= {("invariants", "puts a token at another place of its page")}
