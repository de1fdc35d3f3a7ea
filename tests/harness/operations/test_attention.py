"""Mistakes of attention are found and diagnosed."""

from __future__ import annotations

import math

import msgspec
import pytest
import torch

from attnproof import reference
from attnproof.harness.model.case import decode, encode
from attnproof.harness.operations import ALL
from attnproof.harness.oracles import judge
from attnproof.harness.oracles.trial import Trial

PAGED, DECODES = ALL["paged_attention"], ALL["decode_attention"]
CASES = {operation.name: dict(operation.inputs.boundaries()) for operation in (PAGED, DECODES)}
LARGE = [
    pytest.param(operation, case, id=f"{operation.name}: {name}")
    for operation in (PAGED, DECODES)
    for name, case in operation.inputs.large()
]


def findings(name, function):
    """Return oracle and diagnosis of a candidate's failures on a boundary of paged attention."""
    trial = Trial(PAGED, CASES["paged_attention"][name], function, reference.paged_attention, "cpu")
    return {(failure.oracle, failure.diagnosis) for failure in judge(trial).failures}


def changed(**changes):
    """Return the reference with changed arguments, each a function of the given one."""

    def attend(query, keys, values, starts, lens, table, scale, **kwargs):
        tensors = {"query": query, "table": table, "scale": scale, "values": values}
        for name, change in changes.items():
            place = tensors if name in tensors else kwargs
            place[name] = change(place[name])
        reference.paged_attention(
            tensors["query"],
            keys,
            tensors["values"],
            starts,
            lens,
            tensors["table"],
            tensors["scale"],
            **kwargs,
        )

    return attend


@pytest.mark.parametrize(
    ("boundary", "changes", "diagnosis"),
    [
        ("window of 16 (K24)", {"sliding_window": lambda _: None}, "sliding window ignored"),
        ("window of 16 (K24)", {"sliding_window": lambda w: w + 1}, "window one key too wide"),
        ("window of 16 (K24)", {"sliding_window": lambda w: w - 1}, "window one key too narrow"),
        ("soft cap 30 (K24)", {"logits_soft_cap": lambda _: None}, "soft cap ignored"),
        ("fp8 cache", {"k_scale": torch.ones_like}, "k_scale forgotten"),
        ("fp8 cache", {"v_scale": torch.ones_like}, "v_scale forgotten"),
        ("mixed batch", {"scale": lambda _: 1.0}, "scale ignored"),
        ("mixed batch", {"scale": lambda s: s * math.log(2)}, "exponentials to base 2"),
        ("shared prefix blocks", {"table": lambda t: t.flip(0)}, "another request's blocks"),
        (
            "two kv heads",
            {"query": lambda q: q[:, [0, 2, 1, 3]]},
            "attention is wrong",
        ),
    ],
)
def test_a_mistake_is_diagnosed(boundary, changes, diagnosis):
    assert ("equality", diagnosis) in findings(boundary, changed(**changes))


def test_a_stale_page_and_an_unwritten_row_have_different_diagnoses():
    def reads_stale(*args, out, **kwargs):
        reference.paged_attention(*args, out=out, **kwargs)
        out[0] = math.nan

    def writes_nothing(*args, out, **kwargs):
        reference.paged_attention(*args, out=out.clone(), **kwargs)

    assert ("equality", "reads a slot that was never written (NaN)") in findings(
        "mixed batch", reads_stale
    )
    assert ("equality", "a query's result is not written") in findings(
        "mixed batch", writes_nothing
    )


def test_an_overflowing_softmax_reads_no_unwritten_slot():
    def overflows(*args, out, **kwargs):
        reference.paged_attention(*args, out=out, **kwargs)
        out[0] = math.nan

    usual = CASES["paged_attention"]["mixed batch"]
    large = msgspec.structs.replace(usual, params=usual.params | {"scale": 1e4})
    trial = Trial(PAGED, large, overflows, reference.paged_attention, "cpu")
    diagnoses = {failure.diagnosis for failure in judge(trial).failures}
    assert "softmax overflows: scores above 88" in diagnoses


def test_rows_without_a_query_must_not_be_written():
    def writes_all(*args, out, **kwargs):
        reference.paged_attention(*args, out=out, **kwargs)
        out[-1] = 0

    found = findings("padded rows and tokens, loose bounds", writes_all)
    assert ("equality", "a row of no query is written") in found


@pytest.mark.parametrize("boundary", ["mixed batch", "fp8 cache", "one token, one key"])
def test_the_invariant_detects_a_mistake_that_the_reference_shares(boundary):

    def twice(*args, out, **kwargs):
        reference.paged_attention(*args, out=out, **kwargs)
        out *= 3

    trial = Trial(PAGED, CASES["paged_attention"][boundary], twice, twice, "cpu")
    assert "invariants" in {failure.oracle for failure in judge(trial).failures}


@pytest.mark.parametrize(("operation", "case"), LARGE)
def test_large_cases_are_unchanged_by_saving(operation, case):
    assert decode(encode(case)) == case
    longest = max(
        q + c for q, c in zip(case.batch.query_lens, case.batch.computed_lens, strict=True)
    )
    assert longest >= 2000
    for blocks in case.batch.blocks:
        assert len(set(blocks)) == len(blocks)


def test_a_decode_case_makes_every_row_a_request_with_one_query():
    call = DECODES.call.prepare(CASES["decode_attention"]["padded rows"], 0, "cpu")
    query, lens = call["query"], call["seq_lens"]
    assert lens.tolist() == [4, 7, 0, 0]
    assert len(query) == 4
