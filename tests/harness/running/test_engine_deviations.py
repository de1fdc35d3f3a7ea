"""Known deviations of engines that explain findings of other candidates."""

from __future__ import annotations

import pytest

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Case
from attnproof.harness.model.verdict import Failure
from attnproof.harness.running.task.engine_deviations import engine_sentence

NAME = "make_local_attention_virtual_batches"
SCALAR = Failure(
    oracle="equality",
    field="max_query_len",
    diagnosis="numpy.int64 where a Python int was expected",
    message="",
)
OTHER = Failure(oracle="equality", field="slot_mapping", diagnosis="off by one", message="")


@pytest.mark.parametrize(
    ("interface", "words"),
    [
        ("vllm-0.11", "vLLM 0.11 does this too (E1): --deviations vllm:0.11"),
        ("any", "vLLM 0.33 does this too (E1): --deviations vllm:0.33"),
    ],
)
def test_a_finding_names_the_engine_of_its_interface_first(interface, words):
    case = Case(NAME, make_batch([1], [3], 2), {"attn_chunk_size": 2})
    mine = Candidate("mine", "mine.py", interface=interface)
    assert engine_sentence(mine, case, SCALAR) == words
    assert engine_sentence(mine, case, OTHER) == ""


def test_a_condition_and_the_engine_itself_exclude_an_entry():
    case = Case(NAME, make_batch([], [], 2), {"attn_chunk_size": 2})  # E1 needs a row
    assert engine_sentence(Candidate("mine", "mine.py"), case, SCALAR) == ""
    case = Case(NAME, make_batch([1], [3], 2), {"attn_chunk_size": 2})
    engine = Candidate("vllm", "attnproof.harness.adapters.vllm")
    assert engine_sentence(engine, case, SCALAR) == ""
