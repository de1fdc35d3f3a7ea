"""Batches of whole traces are small, have a source and are made quickly."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from attnproof.harness.cases.scheduler.config import SchedulerConfig
from attnproof.harness.cases.scheduler.scheduler import Scheduler
from attnproof.harness.cases.steps.from_trace import ENGINES, batches_from_trace
from attnproof.harness.cases.steps.selection import choose_steps
from attnproof.harness.cases.traces.formats import TraceError
from attnproof.harness.cases.traces.reading import read_trace

NAMES = (
    "azure2023/AzureLLMInferenceTrace_conv.csv",
    "mooncake/conversation_trace.jsonl",
    "vidur/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv",
    "vllm_runs/RTX4090_Llama-3.1-8B/requests.jsonl",
)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.csv"
    rows = [f"{second / 4},m,{20 + 37 * second % 900},{second % 40},0,l" for second in range(80)]
    header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
    path.write_text("\n".join([header, *rows]))
    return path


@pytest.mark.parametrize("name", NAMES)
def test_batches_of_real_traces(traces: Path, name: str) -> None:
    chosen = batches_from_trace(traces / name, 60, seed=1, max_steps=1500)
    assert len(chosen.batches) == len({item.source for item in chosen.batches}) == 60
    for item in chosen.batches:
        batch = item.batch
        assert len(msgspec.json.encode(batch)) < 100_000
        for query, computed, blocks in zip(
            batch.query_lens, batch.computed_lens, batch.blocks, strict=True
        ):
            assert len(blocks) == -(-(query + computed) // batch.block_size)
    assert {item.batch.block_size for item in chosen.batches} == {16, 32, 128}
    assert any(item.batch.padded_requests for item in chosen.batches)
    assert max(item.batch.num_requests for item in chosen.batches) > 4
    assert max(item.batch.num_tokens for item in chosen.batches) > 500


def test_sources_and_summary(small: Path) -> None:
    config = SchedulerConfig(max_model_len=2048)
    chosen = batches_from_trace(small, 10, config=config)
    assert all(item.source.startswith("small.csv#step=") for item in chosen.batches)
    assert chosen.summary.startswith("small.csv: 10 of ")
    assert chosen.summary.endswith("of 1 engine(s), 80 of 80 requests each")
    engines = {item.source.split(",")[0] for item in batches_from_trace(small, 8).batches[:4]}
    assert engines == {f"small.csv#{engine}" for engine in ENGINES}


def test_another_seed_schedules_another_part(small: Path) -> None:
    chosen = batches_from_trace(small, 8, seed=4, max_requests=20)
    assert all(",from=" in item.source for item in chosen.batches)
    assert chosen.summary.endswith("20 of 80 requests each")
    assert chosen == batches_from_trace(small, 8, seed=4, max_requests=20)


@pytest.mark.parametrize("count", [0, 1, 3, 7, 30])
def test_count_is_shared_by_the_engines(small: Path, count: int) -> None:
    assert len(batches_from_trace(small, count).batches) == count


def test_the_summary_counts_skipped_engine_steps(small: Path) -> None:
    chosen = batches_from_trace(small, 10, max_blocks=30)
    assert "steps above 30 blocks skipped" in chosen.summary
    assert all(sum(map(len, item.batch.blocks)) <= 30 for item in chosen.batches)


def test_errors_of_the_reader_are_raised(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        batches_from_trace(tmp_path / "none")


def memory_mib(field: str) -> float:
    """Return a field of this process's status."""
    status = Path("/proc/self/status").read_text()
    return (
        next(int(line.split()[1]) for line in status.splitlines() if line.startswith(field)) / 1024
    )


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["default", "tight"])
def test_a_whole_trace_in_a_minute_and_a_gibibyte(traces: Path, engine: str) -> None:
    requests = read_trace(traces / NAMES[0])
    # Resets the peak of this process, in which other tests have run.
    Path("/proc/self/clear_refs").write_text("5")
    before_mib, begin = memory_mib("VmRSS"), time.process_time()
    schedule = Scheduler(requests, ENGINES[engine])
    chosen = choose_steps(schedule, 200)
    seconds = time.process_time() - begin
    peak_mib = memory_mib("VmHWM") - before_mib
    print(f"{engine}: {schedule.counts} in {seconds:.1f} s, peak {peak_mib:.0f} MiB")
    assert schedule.counts.finished == len(requests) == 19_366
    assert len(chosen) == 200
    assert seconds < 60
    assert peak_mib < 1024
