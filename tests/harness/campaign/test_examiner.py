"""The examiner's process: tasks draw and do not shrink, shrinking joins what they have drawn."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis.database import DirectoryBasedExampleDatabase

from attnproof import __version__
from attnproof.harness.campaign.examiner_process import EXAMINE, ExaminerProcess
from attnproof.harness.campaign.node import EXAMPLES
from attnproof.harness.campaign.records import Answer, Order
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import encode
from attnproof.harness.running.errors import InfrastructureError
from attnproof.harness.running.task.saved_failures import key_of
from attnproof.harness.running.task.settings import Settings

pytestmark = pytest.mark.slow

OPERATION = "_compute_slot_mapping_numpy"
BACKEND = str(Path(__file__).parents[3] / "examples" / "wrong_backend.py")
CANDIDATE = Candidate("wrong", BACKEND, interface="vllm-0.11")
TASK = Settings(examples=120, seed=3, shrink_seconds=0.0, boundaries=False, minimise_known=False)
SHRINKING = msgspec.structs.replace(TASK, examples=0, vary=False, shrink_seconds=30.0)


@pytest.fixture(scope="module")
def examiner():
    process = ExaminerProcess()
    yield process
    process.stop()


def order(settings: Settings, number: int | None = None, **more) -> Order:
    return Order(
        operation=OPERATION,
        candidate=CANDIDATE,
        settings=settings,
        number=number,
        version=__version__,
        **more,
    )


def ask(examiner, made: Order, folder: Path, meanwhile=lambda: None) -> Answer:
    folder.mkdir()
    answer = examiner.ask(EXAMINE, msgspec.msgpack.encode(made), str(folder), meanwhile)
    return msgspec.msgpack.decode(answer, type=Answer)


def test_a_failing_case_is_in_the_folder_before_the_task_has_ended(examiner, tmp_path):
    database = DirectoryBasedExampleDatabase(tmp_path / "task" / EXAMPLES)
    key, early = key_of(OPERATION, CANDIDATE), set()
    ask(examiner, order(TASK, 1), tmp_path / "task", lambda: early.update(database.fetch(key)))
    assert early


def test_what_tasks_draw_is_shrunk_once(examiner, tmp_path):
    drawn = ask(examiner, order(TASK, 1), tmp_path / "task").outcome
    (found,) = drawn.root_causes
    value = encode(found.smallest.case)
    passing = encode(msgspec.structs.replace(found.smallest.case, params=SHORT))
    made = order(SHRINKING, values=(value, passing))
    answer = ask(examiner, made, tmp_path / "shrinking")
    (shrunk,) = answer.outcome.root_causes
    assert shrunk.root == found.root
    assert len(encode(shrunk.smallest.case)) < len(value)
    assert answer.passing == (passing,)
    (finding,) = answer.outcome.findings
    assert finding.diagnosis == "repeats the values of an earlier tile"
    assert finding.outputs

    again = msgspec.structs.replace(TASK, known=(shrunk,))
    later = ask(examiner, order(again, 2), tmp_path / "later").outcome
    assert later.root_causes == []
    (counted,) = later.findings
    assert counted.failed_cases > 0
    assert counted.case_id == finding.case_id
    assert not counted.outputs, "the driver has them already"


SHORT = {"block_size": 4, "blocks": [5], "range_start": 0, "range_end": 2}
"""Arguments of a case that the backend gets right."""


def test_another_version_is_refused(examiner, tmp_path):
    with pytest.raises(InfrastructureError, match=r"is installed on .*, 0 on the driver"):
        ask(examiner, msgspec.structs.replace(order(TASK, 1), version="0"), tmp_path / "task")


def test_a_process_that_dies_is_an_error(tmp_path):
    process = ExaminerProcess()
    process._process.kill()
    with pytest.raises(InfrastructureError, match="ended with status -9"):
        ask(process, order(TASK, 1), tmp_path / "task")
    assert not process.is_alive
