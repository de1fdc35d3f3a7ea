"""How often the timing room is wrong: false verdicts without a difference, missed ones with it.

    python tools/timing_power.py [--runs 10] [--load 1] [--seconds 0.3]

Real functions from about 1 µs to 1 ms are timed against themselves, then a function of
about 100 µs against one that does 10 % more of the same work. Each run has a noise floor
of its own, as `attnproof bench` has. `--load` keeps that many other processes busy.
Exit code 1 if more than 1 of 100 comparisons without a difference is declared, or fewer
than 9 of 10 slowdowns are found.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
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
from attnproof.harness.timing.process.paired import Budget, Contestant, measure
from attnproof.harness.timing.process.quiet import quiet
from attnproof.harness.timing.statistics import mann_whitney, ratio, verdict
from attnproof.reference.shared import CommonAttentionMetadata

BLOCK, CHUNK = 16, 8192
COMPARISONS = 10
"""Of each function with itself in one run."""
SLOWDOWNS = 3
"""Comparisons with the slower function in one run."""


class Compared(NamedTuple):
    """One comparison."""

    name: str
    ratio: float
    speed: Speed
    rounds: int
    seconds: float


def batch(requests: int) -> CommonAttentionMetadata:
    """A mixed step: mostly decodes, every eighth request a chunk of a prompt."""
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
    """Functions of an engine's step, from the shortest to the longest."""

    def local(package: object, requests: int) -> Callable[[], object]:
        make = package.make_local_attention_virtual_batches  # type: ignore[attr-defined]
        return partial(make, CHUNK, batch(requests), BLOCK)

    return [
        Contestant(
            "split, 8 requests", lambda: partial(optimized.split_decodes_and_prefills, batch(8))
        ),
        Contestant("local attention, 64 requests", lambda: local(optimized, 64)),
        Contestant("local attention, 1024 requests", lambda: local(optimized, 1024)),
        Contestant("local attention in loops, 64 requests", lambda: local(reference, 64)),
    ]


def repeated(times: int) -> Contestant:
    """The same little work that many times in a row."""

    def make() -> Callable[[], None]:
        split, given = optimized.split_decodes_and_prefills, batch(8)

        def run() -> None:
            for _ in repeat(None, times):
                split(given)

        return run

    return Contestant(f"{times} times", make)


def compare(pair: Sequence[Contestant], budget: Budget, noise: Noise) -> Compared:
    """The second beside the first."""
    begin = time.monotonic()
    one, other = (samples.host_ns for samples in measure(pair, budget, "cpu"))
    seconds = time.monotonic() - begin
    found = ratio(other, one)
    speed = verdict(*found, mann_whitney(other, one), noise)
    return Compared(pair[0].name, found[0], speed, len(one), seconds)


def calls_of(nanoseconds: float) -> int:
    """How often the little work must be repeated to take that long."""
    [taken] = measure([repeated(10)], Budget(), "cpu")
    return max(10, round(nanoseconds / (float(np.median(taken.host_ns)) / 10) / 10) * 10)


def one_run(budget: Budget) -> tuple[Noise, list[Compared], list[Compared]]:
    """The noise floor, the comparisons without a difference, those with one."""
    given = functions()
    noise = measure_noise(given, budget, "cpu", repeats=3)
    pairs = [(contestant, contestant) for contestant in given for _ in range(COMPARISONS)]
    same = [compare(pair, budget, noise) for pair in pairs]
    times = calls_of(100_000)
    pair = (repeated(times), repeated(times * 11 // 10))
    return noise, same, [compare(pair, budget, noise) for _ in range(SLOWDOWNS)]


def show(title: str, found: list[Compared]) -> None:
    """One line a function: verdicts, spread of the ratios, rounds and seconds."""
    print(title)
    for name in dict.fromkeys(one.name for one in found):
        of_it = [one for one in found if one.name == name]
        said = {speed: sum(one.speed == speed for one in of_it) for speed in ("faster", "slower")}
        low, high = np.quantile([one.ratio for one in of_it], (0.01, 0.99))
        rounds = np.median([one.rounds for one in of_it])
        seconds = np.mean([one.seconds for one in of_it])
        print(
            f"  {name}: {len(of_it)} comparisons, "
            f"{said['faster']} faster, {said['slower']} slower, "
            f"ratio {low:.3f} to {high:.3f}, {rounds:.0f} rounds, {seconds:.2f} s each"
        )


def busy() -> None:
    """Keep a core busy."""
    while True:
        sum(range(10_000))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10, help="each with its own noise floor")
    parser.add_argument("--load", type=int, default=0, help="busy processes beside this one")
    parser.add_argument("--seconds", type=float, default=0.3, help="for one comparison")
    options = parser.parse_args()
    neighbours = [multiprocessing.Process(target=busy, daemon=True) for _ in range(options.load)]
    for neighbour in neighbours:
        neighbour.start()
    budget, same, slower = Budget(seconds=options.seconds), [], []
    try:
        for number in range(options.runs):
            with quiet():
                noise, no_difference, slowdowns = one_run(budget)
            print(
                f"run {number + 1}: floor {noise.floor:.3f}, {noise.declared} declared without it"
            )
            same += no_difference
            slower += slowdowns
    finally:
        for neighbour in neighbours:
            neighbour.terminate()
    show("the same function twice", same)
    show("10 % more work", slower)
    declared = sum(one.speed != "no evidence" for one in same)
    seen = sum(one.speed == "slower" for one in slower)
    print(f"declared {declared} of {len(same)}, slowdowns found {seen} of {len(slower)}")
    return int(declared > len(same) / 100 or seen < 0.9 * len(slower))


if __name__ == "__main__":
    sys.exit(main())
