"""The sentence on the consequence: by diagnosis, by field, by oracle."""

from __future__ import annotations

import pytest

from attnproof.harness.model.verdict import ORACLES
from attnproof.harness.report.shared.consequences import consequence
from tests.harness.report.runs import make_finding


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"diagnosis": "another request's block"}, "written into another request's cache"),
        (
            {"diagnosis": "another request's block", "field": "block_table_tensor[0, 1]"},
            "Attention reads another request's cache",
        ),
        ({"field": "[1].seq_lens[0]", "diagnosis": "off by one token"}, "number of cached keys"),
        ({"field": "num_decodes", "diagnosis": "off by one request"}, "kernel that is not for"),
        ({"diagnosis": "wrong slot"}, "other cache slots than attention reads"),
        ({"field": "result[0]", "diagnosis": "wrong slot"}, "other cache slots"),
        ({"oracle": "errors", "diagnosis": "raises IndexError on good input"}, "ends with this"),
        ({"oracle": "process", "diagnosis": "crashes with signal 11"}, "process ends on such"),
        ({"oracle": "process", "diagnosis": "does not answer within 20 s"}, "stands still"),
        ({"oracle": "process", "diagnosis": "writes to standard output"}, "mixed into"),
        ({"oracle": "padding", "diagnosis": "depends on stale entries"}, "only sometimes"),
        ({"field": "unknown", "diagnosis": "unknown is wrong"}, ""),
    ],
)
def test_the_most_specific_sentence_is_taken(changes, words):
    sentence = consequence(make_finding(**changes))
    assert words in sentence
    assert bool(sentence) == bool(words)


def test_every_oracle_but_those_of_fields_has_a_sentence():
    without = {
        oracle
        for oracle in ORACLES
        if not consequence(make_finding(oracle=oracle, diagnosis="x", field="x"))
    }
    assert without == {"equality", "invariants"}
