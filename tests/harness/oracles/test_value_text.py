"""Floats are shown in the digits that tell expected and got apart, and marked beyond tolerance."""

from __future__ import annotations

import pytest
import torch

from attnproof import reference
from attnproof.harness.model.call_kinds import Parts
from attnproof.harness.operations import ALL
from attnproof.harness.oracles.trial import Trial
from attnproof.harness.oracles.value_text import brief, briefs
from attnproof.harness.running.task.explanation import explain


@pytest.mark.parametrize(
    ("expected", "got", "texts"),
    [
        ([1 / 3, 2.0], [1 / 3, 5 / 3], ("[0.333333 2.0]", "[0.333333 1.66667]")),
        ([1 / 3], [1 / 3 + 1e-8], ("[0.333333333]", "[0.333333343]")),
        ([1 / 3], [1 / 3 + 1e-16], ("[0.33333333333333331]", "[0.33333333333333343]")),
    ],
)
def test_floats_have_the_digits_that_tell_them_apart(expected, got, texts):
    pair = briefs(*(torch.tensor(values, dtype=torch.float64) for values in (expected, got)))
    suffix = f" (float64 [{len(expected)}] cpu)"
    assert (pair["expected"], pair["got"]) == tuple(f"{text}{suffix}" for text in texts)


def test_numbers_and_other_values_keep_their_text():
    assert briefs(0.1, 0.2) == {"expected": "0.1", "got": "0.2"}
    assert briefs(None, [1, 2]) == {"expected": "None", "got": "[1 2]"}
    assert brief(torch.tensor([1, 2])) == "[1 2] (int64 [2] cpu)"


def test_elements_within_the_tolerance_are_not_marked():
    """Attention in half precision rounds every element; one is wrong."""

    def wrong(*args, out, **options):
        reference.paged_attention(*args, out=out, **options)
        out[0, 0, 3] += 1.0

    case = next(
        case for name, case in ALL["paged_attention"].inputs.boundaries() if "mixed" in name
    )
    trial = Trial(ALL["paged_attention"], case, wrong, reference.paged_attention, "cpu")
    explained = explain(trial, Parts({}, ()), "mine.py")
    [out] = [output for output in explained.outputs if not output["equal"]]
    differing = torch.tensor(out["expected"]) != torch.tensor(out["got"])
    assert out["wrong"] == [[0, 0, 3]]
    assert differing.sum() > 1
