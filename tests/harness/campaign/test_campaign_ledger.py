"""The ledger of a campaign: whole lines only, and no other file."""

from __future__ import annotations

import msgspec
import pytest

from attnproof.harness.campaign.ledger import LEDGER, CampaignLedger, read_ledger
from attnproof.harness.campaign.records import Cost, Order, TaskEnded
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.task.settings import Settings
from tests.harness.campaign.instant_pool import (
    BEGUN,
    CANDIDATE,
    PAIRS,
    answer_of,
    case_of,
    root_cause_of,
)

ORDER = Order(
    operation=PAIRS[0].operation, candidate=CANDIDATE, settings=Settings(), number=4, version=""
)


def task() -> TaskEnded:
    answer = answer_of(ORDER, [root_cause_of(case_of(ORDER.operation, "slots", 3))])
    cost = Cost(start_s=1.5, total_s=2.0, order_bytes=3, answer_bytes=4)
    return TaskEnded(pair=ORDER.pair, number=4, at=7.5, answer=answer, cost=cost)


def test_what_is_written_is_read_again(tmp_path):
    ledger = CampaignLedger(tmp_path, BEGUN)
    ledger.append(task())
    ledger.close()
    again = CampaignLedger(tmp_path, msgspec.structs.replace(BEGUN, seed=99))
    again.close()
    assert again.begun == BEGUN
    assert again.lines == [task()]


@pytest.mark.parametrize("kept", [1, 100, -1])
def test_a_line_that_was_cut_off_is_dropped_and_the_next_one_is_whole(tmp_path, kept):
    ledger = CampaignLedger(tmp_path, BEGUN)
    ledger.append(task())
    ledger.close()
    path = tmp_path / LEDGER
    data = path.read_bytes()
    second = data.index(b"\n") + 1
    path.write_bytes(data[: second + kept] if kept > 0 else data[:kept])
    again = CampaignLedger(tmp_path, BEGUN)
    assert again.lines == []
    again.append(task())
    again.close()
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}\n", "line 1, is not of a campaign"),
        ('{"type":"task"}\n', "line 1, is not of a campaign"),
        ('{"type":"campaign","schema":"x/9","seed":1,"started":"","options":{}}\n', "this version"),
        ("\udcff\n", "line 1, is not of a campaign"),
    ],
)
def test_another_file_is_refused_and_left_as_it_is(tmp_path, text, message):
    path = tmp_path / LEDGER
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UsageError, match=message):
        CampaignLedger(tmp_path, BEGUN)
    assert path.read_bytes() == text.encode(errors="surrogateescape")


def test_there_is_nothing_without_a_file(tmp_path):
    assert read_ledger(tmp_path / LEDGER) == ([], 0)
