"""Runs of vLLM's scheduler, recorded step by step, against ours.

The first line of each file has the command that made it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from attnproof.harness.cases.scheduler.config import SchedulerConfig
from attnproof.harness.cases.scheduler.engine_run import (
    Arrival,
    EngineRun,
    EngineStep,
    read_run,
    write_run,
)
from attnproof.harness.cases.scheduler.guided import compare_run

RUNS = sorted((Path(__file__).parent / "data").glob("*.jsonl.gz"))
LIVE = next(path for path in RUNS if path.name.startswith("live-all"))


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name.partition(".")[0])
def test_every_step_is_that_of_the_engine(path: Path) -> None:
    run, steps = read_run(path)
    found = compare_run(run.config, steps)
    assert found.difference is None
    assert not found.renamed


def test_the_live_run_has_everything_that_is_compared() -> None:
    run, steps = read_run(LIVE)
    found = compare_run(run.config, steps)
    assert found.steps == 100
    assert min(found.preemptions, found.cached_tokens, found.aborted) > 0
    assert 0 < found.accepted < found.drafts


def test_the_rules_of_another_release_differ() -> None:
    run, steps = read_run(LIVE)
    assert compare_run(replace(run.config, engine="0.11"), steps).difference


CONFIG = SchedulerConfig(block_size=4, num_blocks=9, max_model_len=32)
STEPS = (
    EngineStep(
        arrived=(Arrival(6, 3, (7,)), Arrival(5, 1, (7,))),
        scheduled=((0, 6), (1, 1)),
        blocks=((3, 4), (3, 5)),
        free=5,
        sampled={0: 1, 1: 1},
    ),
    EngineStep(scheduled=((0, 1),), blocks=((3, 4),), free=6, sampled={0: 1}),
)


def test_blocks_are_compared_up_to_renaming() -> None:
    found = compare_run(CONFIG, STEPS)
    assert (found.difference, found.renamed, found.steps) == (None, True, 2)
    assert (found.requests, found.tokens, found.cached_tokens) == (2, 8, 4)


@pytest.mark.parametrize(
    ("step", "change", "difference"),
    [
        (
            0,
            {"scheduled": ((0, 6), (1, 5))},
            "step 1: the engine gives request 1 5 tokens, the scheduler request 1 1",
        ),
        (
            0,
            {"scheduled": ((0, 6),), "blocks": ((3, 4),)},
            "step 1: only the scheduler schedules request 1, with 1 tokens",
        ),
        (
            1,
            {"scheduled": ((0, 1), (1, 1)), "blocks": ((3, 4), (3, 5))},
            "step 2: only the engine schedules request 1, with 1 tokens",
        ),
        (
            1,
            {"blocks": ((3, 5),)},
            "step 2: request 0: block 1 is 5 in the engine, 2 in the scheduler; "
            "before, 5 was 3 there, and 2 was 4",
        ),
        (
            1,
            {"blocks": ((3, 4, 6),)},
            "step 2: request 0: blocks: 3 in the engine, 2 in the scheduler",
        ),
        (0, {"free": 4}, "step 1: free blocks: 4 in the engine, 5 in the scheduler"),
        (1, {"sampled": {}}, "step 2: request 0: only the scheduler samples"),
        (1, {"aborted": (0,)}, "step 2: only the engine schedules request 0, with 1 tokens"),
    ],
)
def test_the_first_difference_is_named(step: int, change: dict[str, Any], difference: str) -> None:
    changed = [*STEPS]
    changed[step] = replace(STEPS[step], **change)
    assert compare_run(CONFIG, changed).difference == difference


def test_an_aborted_request_loses_its_blocks_wherever_it_is() -> None:
    gone = EngineStep(
        aborted=(0, 1),
        arrived=(Arrival(9, 1, ()),),
        scheduled=((2, 9),),
        blocks=((5, 4, 6),),
        free=5,
        sampled={2: 1},
    )
    first = replace(STEPS[0], arrived=(Arrival(6, 3, (7,)), Arrival(5, 4, (7,))))
    assert compare_run(CONFIG, [first, gone]).difference is None


def test_a_block_that_accepted_drafts_filled_has_no_hash_when_its_request_is_preempted() -> None:
    # A block gets its hash with the step after the one that filled it.
    steps = (
        EngineStep(
            arrived=(Arrival(3, 3, ()), Arrival(2, 6, ())),
            scheduled=((0, 3), (1, 2)),
            blocks=((1,), (2,)),
            free=1,
            sampled={0: 1, 1: 1},
        ),
        EngineStep(
            drafts={1: 3},
            scheduled=((0, 1), (1, 4)),
            blocks=((1,), (2, 3)),
            free=0,
            sampled={0: 1, 1: 4},
        ),
        EngineStep(scheduled=((0, 1),), blocks=((1, 3),), free=1, sampled={0: 1}),
        EngineStep(scheduled=((1, 7),), blocks=((3, 2),), free=1, sampled={1: 1}),
    )
    few = SchedulerConfig(
        block_size=4, num_blocks=4, max_model_len=12, num_speculative_tokens=3, max_num_seqs=2
    )
    found = compare_run(few, steps)
    assert (found.difference, found.preemptions, found.accepted) == (None, 1, 3)


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = EngineRun(engine="vLLM", command="none", config=CONFIG)
    write_run(tmp_path / "run", run, STEPS)
    read, steps = read_run(tmp_path / "run")
    assert (read, tuple(steps)) == (run, STEPS)


def test_a_run_of_a_later_format_is_refused(tmp_path: Path) -> None:
    run = EngineRun(engine="vLLM", command="none", config=CONFIG, version=2)
    write_run(tmp_path / "run", run, STEPS)
    with pytest.raises(msgspec.ValidationError, match=r"version 2 .* known up to 1: update"):
        read_run(tmp_path / "run")
