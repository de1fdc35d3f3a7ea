"""Sequences of the V0 builder and graph state: their scripts, and the bugs that they find."""

from __future__ import annotations

import pytest

from attnproof import reference
from attnproof.harness.operations import ALL
from attnproof.harness.operations.shared.sequence import run_script
from attnproof.harness.running.loading import offered_by

NAMES = ("builder_sequence", "graph_sequence")


@pytest.mark.parametrize("name", NAMES)
def test_exactly_the_lines_marked_as_malformed_raise(name, sampled_batches):
    operation = ALL[name]
    cases = [case for _, case in operation.inputs.boundaries()]
    for batch in sampled_batches:
        cases += operation.inputs.from_batch(batch)
    for case in cases:
        script = operation.call.script(case)
        transcript = run_script(operation.call, offered_by(reference, operation), script)
        refused = [step["raises"] is not None for step in transcript.steps]
        assert refused == [line.raises for line in script.lines], case


@pytest.mark.strength
@pytest.mark.parametrize(
    ("candidate", "operation", "diagnosis"),
    [
        ("forgets_to_clear", "builder_sequence", "an earlier batch left behind"),
        ("runners_tables", "builder_sequence", "an earlier batch left behind"),
        ("runners_tables", "CommonMetadataBuilder", "stale entry read"),
        ("stale_graph_rows", "graph_sequence", "an earlier step's value kept"),
        ("stale_graph_rows", "CommonAttentionState", "an earlier step's value kept"),
        (
            "attnproof.harness.strength.mutations.v0:capturing_for_ever.candidate",
            "graph_sequence",
            "state stays in capturing mode",
        ),
    ],
)
def test_data_that_an_earlier_step_left_is_found(
    examine_candidate, candidate, operation, diagnosis
):
    found = examine_candidate(candidate, operation).findings
    named = [finding for finding in found if finding.diagnosis == diagnosis]
    assert named
    if ALL[operation].inputs.machine:
        assert min(len(finding.steps) for finding in named) <= 5
