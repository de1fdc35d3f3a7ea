"""Steps of a live vLLM 0.32.0 with ngram speculation, 6 requests at a time.

Made by: attnproof record --limit 48 -- python tools/live_engine.py --steps 80 --requests 6 --ngram
"""

from __future__ import annotations

from pathlib import Path

from attnproof.harness.cases.recorded.reading import recorded_steps
from attnproof.harness.operations import ALL
from attnproof.harness.running.recordings import read_recordings

FILE = Path(__file__).parent / "data" / "llama-ngram.vllm-0.32.attnrec"


def test_every_slot_of_a_live_engine_agrees_with_the_reference():
    steps, [outcome], notes = read_recordings([FILE], 20, 1, list(ALL.values()))
    assert (outcome.result.verdict, outcome.result.cases) == ("PASS", 48)
    assert len(steps) == 20
    assert any(min(step.batch.query_lens) > 1 for step in steps)  # drafts, or only prefills
    assert notes == [f"{FILE.name}: 48 batches, 48 results compared"]


def test_a_live_engine_s_dummy_runs_are_not_in_the_file():
    remarks = []
    steps = list(recorded_steps(FILE, remarks))
    assert [step.step for step in steps] == sorted({step.step for step in steps})
    assert remarks == []
