"""The rows of live engines, as recorded in ../shared/recorded, against `Rows`."""

from __future__ import annotations

import gzip
import json

import pytest

from attnproof.harness.cases.scheduler.block_pool import BlockPool
from attnproof.harness.cases.scheduler.rows import Rows
from tests.recordings import recording

WITHOUT_REORDERING = (
    "llama-ngram.vllm-0.32",
    "gemma3n-fast-prefill.vllm-0.11",
    "llama4-chunked-local.vllm-0.11",
)


@pytest.mark.parametrize("name", WITHOUT_REORDERING)
def test_rows_are_those_of_a_live_engine(name):
    rows, moved = Rows(), 0
    with gzip.open(recording(name), "rt", encoding="utf-8") as lines:
        for line in lines:
            step = json.loads(line)
            scheduled = [request for request, _ in step["scheduled"]]
            assert rows.update(scheduled, step["resumed"]) == step["rows"], step["step"]
            moved += step["rows"] != scheduled
    assert moved > 0


@pytest.mark.parametrize(
    ("name", "engine"),
    [("llama-ngram.vllm-0.32", "0.32"), ("llama4-chunked-local.vllm-0.11", "0.11")],
)
def test_blocks_are_those_that_a_live_engine_gave(name, engine):
    """Free and allocate blocks as the recorded steps did; each new block has the recorded id."""
    with gzip.open(recording(name), "rt", encoding="utf-8") as lines:
        steps = [json.loads(line) for line in lines]
    size = steps[0]["builds"][0]["block_size"]
    tables = [_tables(step) for step in steps]
    pool = BlockPool(1 + max(block for table in tables for row in table.values() for block in row))
    held: dict[str, list[int]] = {}
    computed: dict[str, int] = {}
    given = 0
    for step, table in zip(steps, tables, strict=True):
        progress = dict(zip(step["rows"], step["computed"], strict=True))
        needed = sum(len(table[r]) - len(held.get(r, ())) for r in step["rows"])
        if step["preempted"] or needed > pool.num_free:
            break  # a preemption, of which the record has no place among the allocations
        # The engine frees in the order of its running requests; the record has a set.
        ended = sorted(step["finished"], key=list(computed).index)
        for request in ended:
            hashed = computed.get(request, 0) // size
            pool.release(held.pop(request, []), None if engine == "0.11" else hashed)
        for request, tokens in step["scheduled"]:
            blocks = held.setdefault(request, [])
            more = len(table[request]) - len(blocks)
            given += more
            blocks += pool.allocate(more)
            assert blocks == table[request], (step["step"], request)
            # Drafts are not part of a block's hash before they are accepted.
            computed[request] = progress[request] + tokens - step["spec"].get(request, 0)
    assert given > 300


def _tables(step):
    [count] = {len(counts) for counts in step["blocks_per_row"]} and step["blocks_per_row"][:1]
    rows = step["builds"][0]["cam"]["block_table_tensor"]["v"]
    return {
        request: row[:blocks]
        for request, row, blocks in zip(step["rows"], rows, count, strict=False)
    }
