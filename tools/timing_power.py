"""Measure the error rates of timing: false differences and missed slowdowns.

    python tools/timing_power.py [--runs 10] [--load 1] [--seconds 0.3]

Real functions from about 1 µs to 1 ms are timed against themselves, then a function of
about 100 µs against one that does 10 % more of the same work. Each run measures its own
noise floor, as `attnproof bench` does. `--load` runs that many other busy processes.
Exit code 1 if more than 1 % of the comparisons of a function with itself report a
difference, or fewer than 90 % of the slowdowns are found.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Sequence
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from attnproof import optimized, reference
from attnproof.harness.model.timing import Noise, Speed
from attnproof.harness.timing.analysis.noise import measure_noise
from attnproof.harness.timing.process.comparison import TimedCall
from attnproof.harness.timing.process.paired import Budget, Contestant, measure
from attnproof.harness.timing.process.steady import steady
from attnproof.harness.timing.statistics import mann_whitney, ratio, verdict
from attnproof.reference.shared import CommonAttentionMetadata

BLOCK, CHUNK = 16, 8192
COMPARISONS = 10
"""Comparisons of each function with itself in one run."""
SLOWDOWNS = 3
"""Comparisons with the slower function in one run."""


class Compared(NamedTuple):
    """Result of one comparison."""

    name: str
    ratio: float
    speed: Speed
    rounds: int
    seconds: float


def batch(requests: int) -> CommonAttentionMetadata:
    """Return a batch of decodes in which every eighth request is a chunk of a prompt."""
    random = np.random.default_rng(requests)
    computed = random.integers(100, 8000, requests)
    query = np.ones(requests, int)
    query[-max(1, requests // 8) :] = random.integers(16, 300, max(1, requests // 8))
    lengths = computed + query
    starts = torch.tensor(np.concatenate([[0], np.cumsum(query)]), dtype=torch.int32)
    width = -(-int(lengths.max()) // BLOCK)
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts.clone(),
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        seq_lens_cpu=torch.tensor(lengths, dtype=torch.int32),
        num_computed_tokens_cpu=torch.tensor(computed, dtype=torch.int32),
        num_reqs=requests,
        num_actual_tokens=int(query.sum()),
        max_query_len=int(query.max()),
        max_seq_len=int(lengths.max()),
        block_table_tensor=torch.arange(requests * width, dtype=torch.int32).view(requests, width),
        slot_mapping=torch.arange(int(query.sum())),
    )


def functions() -> list[Contestant]:
    """Return functions of an engine step, from the fastest to the slowest."""

    def local(package: object, requests: int) -> TimedCall:
        make = package.make_local_attention_virtual_batches  # type: ignore[attr-defined]
        return TimedCall(partial(make, CHUNK, batch(requests), BLOCK))

    return [
        Contestant(
            "split, 8 requests",
            lambda: TimedCall(partial(optimized.split_decodes_and_prefills, batch(8))),
        ),
        Contestant("local attention, 64 requests", lambda: local(optimized, 64)),
        Contestant("local attention, 1024 requests", lambda: local(optimized, 1024)),
        Contestant("local attention in loops, 64 requests", lambda: local(reference, 64)),
    ]


def repeated(times: int) -> Contestant:
    """Return a contestant that does the same short work `times` times."""

    def make() -> TimedCall:
        split, metadata = optimized.split_decodes_and_prefills, batch(8)

        def run() -> None:
            for _ in repeat(None, times):
                split(metadata)

        return TimedCall(run)

    return Contestant(f"{times} times", make)


def compare(pair: Sequence[Contestant], budget: Budget, noise: Noise) -> Compared:
    """Compare the second contestant of the pair with the first."""
    begin = time.monotonic()
    first, other = (samples.host_ns for samples in measure(pair, budget, "cpu"))
    seconds = time.monotonic() - begin
    ratios = ratio(other, first)
    speed = verdict(*ratios, mann_whitney(other, first), noise)
    return Compared(pair[0].name, ratios[0], speed, len(first), seconds)


def calls_of(nanoseconds: float) -> int:
    """Return the number of repetitions of the short work that take `nanoseconds`."""
    [taken] = measure([repeated(10)], Budget(), "cpu")
    return max(10, round(nanoseconds / (float(np.median(taken.host_ns)) / 10) / 10) * 10)


def one_run(budget: Budget) -> tuple[Noise, list[Compared], list[Compared]]:
    """Return the noise floor, the comparisons without a difference, and those with one."""
    contestants = functions()
    noise = measure_noise(contestants, budget, "cpu", repeats=3)
    pairs = [(contestant, contestant) for contestant in contestants for _ in range(COMPARISONS)]
    same = [compare(pair, budget, noise) for pair in pairs]
    times = calls_of(100_000)
    pair = (repeated(times), repeated(times * 11 // 10))
    return noise, same, [compare(pair, budget, noise) for _ in range(SLOWDOWNS)]


def show(title: str, comparisons: list[Compared]) -> None:
    """Print a line per function: verdicts, spread of the ratios, rounds and seconds."""
    print(title)
    for name in dict.fromkeys(row.name for row in comparisons):
        same = [row for row in comparisons if row.name == name]
        counts = {speed: sum(row.speed == speed for row in same) for speed in ("faster", "slower")}
        low, high = np.quantile([row.ratio for row in same], (0.01, 0.99))
        rounds = np.median([row.rounds for row in same])
        seconds = np.mean([row.seconds for row in same])
        print(
            f"  {name}: {len(same)} comparisons, "
            f"{counts['faster']} faster, {counts['slower']} slower, "
            f"ratio {low:.3f} to {high:.3f}, {rounds:.0f} rounds, {seconds:.2f} s each"
        )


def busy() -> None:
    """Keep a core busy."""
    while True:
        sum(range(10_000))


def main() -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10, help="runs, each with its own noise floor")
    parser.add_argument("--load", type=int, default=0, help="number of other busy processes")
    parser.add_argument("--seconds", type=float, default=0.3, help="time for one comparison")
    options = parser.parse_args()
    neighbours = [multiprocessing.Process(target=busy, daemon=True) for _ in range(options.load)]
    for neighbour in neighbours:
        neighbour.start()
    budget, same, slower = Budget(seconds=options.seconds), [], []
    try:
        for number in range(options.runs):
            with steady():
                noise, no_difference, slowdowns = one_run(budget)
            print(
                f"run {number + 1}: noise floor {noise.floor:.3f}, "
                f"{noise.declared} differences reported without it"
            )
            same += no_difference
            slower += slowdowns
    finally:
        for neighbour in neighbours:
            neighbour.terminate()
    show("the same function twice", same)
    show("10 % more work", slower)
    false = sum(row.speed != "no evidence" for row in same)
    detected = sum(row.speed == "slower" for row in slower)
    print(f"false differences {false} of {len(same)}, slowdowns found {detected} of {len(slower)}")
    return int(false > len(same) / 100 or detected < 0.9 * len(slower))


if __name__ == "__main__":
    sys.exit(main())
