"""Errata of vLLM 0.32: both packages are right on the smallest case of each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attnproof.harness.operations import ALL
from attnproof.harness.running.candidates import resolve
from attnproof.harness.running.cases import read_corpus
from attnproof.harness.running.task.workers import Worker

FOLDER = Path(__file__).parents[1] / "corpus" / "vllm"
FIRST = 58
"""Number of the first erratum that only vLLM 0.32 has."""
ERRATUM = re.compile(r"E(\d+)")
CASES = {
    one.source: one.case
    for one in read_corpus(FOLDER)
    if (found := ERRATUM.match(one.source)) and int(found[1]) >= FIRST
}


@pytest.fixture(scope="module", params=["reference", "optimized"])
def judge(request):
    """A worker with one of the packages as candidate."""
    worker = Worker(resolve([request.param], "cpu")[0], ALL, timeout_s=60, memory_bytes=4 << 30)
    yield worker.judge
    worker.stop()


@pytest.mark.spec(
    "E76: 0.32 asserts that there are at least two ranks.",
    "E58: 0.32 returns 0 for all counts if `max_query_len` is above the threshold and",
    "E59: 0.32 returns tensors and numpy scalars among the counts and bounds here, of",
    "E60: 0.32 repeats a list of points where it multiplies a number, and raises Type",
    "E61: 0.32 takes padding for a block: -1 becomes -2, -1 with k = 2, whose slots l",
    "E71: 0.32 leaves in the buffer what stood behind a row's live blocks, such as th",
    "E72: 0.32 multiplies block id and block size in 32 bits, also in the draft step ",
    "E73: 0.32 reads a dummy row's state from the last slot, and writes it before the",
    "E77: 0.32 cannot compile its kernel where `next_prefill_tokens` has no rows, nor",
    "E78: 0.32 writes the last sampled token of a row without logits behind its query",
    "E74: 0.32's kernels of this section and of `prepare_dcp_local_seq_lens` take vec",
    "E75: 0.32 gives a position beyond the table the block of its last column, and re",
    "E62: 0.32 raises RuntimeError for a batch without requests, and `map_to_kernel_b",
    "E63: 0.32 computes the lengths of the child from the bound of its parent's,",
    "E64: 0.32 drops `encoder_seq_lens`.",
    "E79: 0.32 raises RuntimeError for a batch without requests.",
    "E80: 0.32 drops the class of the batch, `encoder_seq_lens` and the optional",
    "E65: 0.32 multiplies block id and block size in 32 bits, and the slots of int32 ",
    "E66: 0.32 takes the next row's block for a position beyond its row's columns, an",
    "E67: 0.32 raises RuntimeError for a block table with gaps between its rows.",
    "E81: 0.32 raises RuntimeError for a batch with graph padding tokens.",
    "E68: 0.32 keeps the logits fields, whose indices are those of the smaller batch.",
    "E69: 0.32 keeps the fields of tokens, whose entries are those of the smaller bat",
    "E83: 0.32 pairs all blocks of the prefill with an empty list of the decode side.",
    "E70: 0.32 keeps `seq_lens_cpu_upper_bound` as it was: it is then below the",
)
@pytest.mark.parametrize("name", sorted(CASES))
def test_both_packages_are_right_on_the_smallest_case(name, judge):
    assert judge(CASES[name]).failures == ()
