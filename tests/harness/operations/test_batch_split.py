"""A split that is too early: attention is right, but one decode runs in the slower kernel."""

from __future__ import annotations

import pytest

from attnproof import reference
from attnproof.harness.operations import ALL
from attnproof.harness.oracles import judge
from attnproof.harness.oracles.trial import Trial

OPERATION = ALL["split_decodes_and_prefills"]


def split_one_row_early(*args, **options):
    """Count the last of the leading decodes as a prefill."""
    decodes, prefills, decode_tokens, prefill_tokens = reference.split_decodes_and_prefills(
        *args, **options
    )
    offsets = args[0].query_start_loc_cpu.tolist()
    last = offsets[decodes] - offsets[decodes - 1]
    return decodes - 1, prefills + 1, decode_tokens - last, prefill_tokens + last


@pytest.mark.parametrize("name", ["decode behind a prefill", "zero-length row between decodes"])
def test_a_leading_decode_is_no_prefill_even_if_the_reference_agrees(name):
    case = dict(OPERATION.inputs.boundaries())[name]
    failures = judge(
        Trial(OPERATION, case, split_one_row_early, split_one_row_early, "cpu")
    ).failures
    assert [failure.diagnosis for failure in failures] == ["takes a leading decode for a prefill"]
