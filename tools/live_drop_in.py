"""Run a live vLLM 0.32 with `optimized` in the place of its functions, and compare it with itself.

In an environment with vLLM (`tox run -e live-0.32` makes one): each configuration runs the same
requests twice with the engine's own functions and once with ours, each time in a new process. The
tokens of every request and the metadata of every step must be the same. What builders make anew in
each process, such as addresses, differs between the two runs of the engine itself: these fields
are named and not compared. Prints how often each of our functions was called. A further process
times steps, at random with ours or the engine's, because processes differ more than their
functions. The exit code is 1 with a difference.

    python tools/live_drop_in.py --steps 200
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar

import live_engine
import live_scenarios
from live_digest import digests, first_difference
from live_swap import Switch, install, install_slots, swaps_of

DEFAULT = ("prefix", "ngram-preemption-prefix", "abort", "window", "local", "conv")
_MS, _US = 1e3, 1e6
_WARM_UP = 50
_Result = TypeVar("_Result")


@dataclass
class Seen:
    """What one process has seen of its engine."""

    replaced: list[str] = field(default_factory=list)
    """Functions of the engine that are replaced by ours."""
    calls: Counter[str] = field(default_factory=Counter)
    """Calls of ours during the steps."""
    earlier: Counter[str] = field(default_factory=Counter)
    """Calls of ours while the engine started, those of dummy runs included."""
    tokens: list[dict[str, tuple[int, ...]]] = field(default_factory=list)
    """Tokens of each request so far, of each step."""
    builds: list[list[dict[str, str]]] = field(default_factory=list)
    """Digests of what each builder of a step got and made."""


def run_engine(name: str, steps: int, seed: int, *, ours: bool) -> Seen:
    """Run a configuration, with our functions or the engine's own."""
    seen = Seen()
    switch = _swapped(seen) if ours else Switch()

    def prepare(engine: Any) -> None:
        seen.earlier = switch.calls
        switch.calls = Counter()
        _watch(engine, seen)

    live_scenarios.run(_greedy(name), steps, seed, "sampler", prepare=prepare)
    seen.calls = switch.calls
    return seen


def _greedy(name: str) -> live_scenarios.Scenario:
    """Return a configuration that only takes the most probable tokens.

    Drafts are accepted by chance otherwise, which differs between two runs of one seed on a CPU.
    """
    return live_scenarios.ALL[name]._replace(temperature=0.0)


def _swapped(seen: Seen) -> Switch:
    """Replace the engine's functions; return the switch between them and ours."""
    os.environ.update({**live_engine.ENVIRONMENT, **os.environ})
    from attnproof import optimized
    from attnproof.harness.interfaces.offering import offered_as

    switch, offered = Switch(), offered_as("vllm-0.32", optimized)
    seen.replaced = [*install(swaps_of(offered), switch), install_slots(offered, switch)]
    return switch


def time_engine(name: str, steps: int, seed: int) -> str:
    """Return the medians of steps with and without our functions, chosen at random."""
    switch, draw = _swapped(Seen()), random.Random(seed)
    times: dict[bool, list[tuple[float, float]]] = {True: [], False: []}

    def prepare(engine: Any) -> None:
        step = engine.step

        def timed_step() -> Any:
            switch.ours, switch.seconds = draw.random() < 0.5, 0.0
            begun = time.perf_counter()
            outputs = step()
            times[switch.ours].append((time.perf_counter() - begun, switch.seconds))
            return outputs

        engine.step = timed_step

    live_scenarios.run(_greedy(name), steps, seed, "sampler", prepare=prepare)
    # The first steps compile our functions.
    ours, theirs = (
        [statistics.median(column) for column in zip(*times[side][_WARM_UP:], strict=True)]
        for side in (True, False)
    )
    return (
        f"a step {ours[0] * _MS:.3f} ms with ours, {theirs[0] * _MS:.3f} ms without "
        f"({ours[0] / theirs[0]:.3f}), of these {ours[1] * _US:.0f} and {theirs[1] * _US:.0f} us "
        f"in the functions"
    )


def _watch(engine: Any, seen: Seen) -> None:
    """Note the tokens of each step, and the metadata of each build."""
    from vllm.v1.worker.utils import AttentionGroup

    step, build = engine.step, AttentionGroup.build_metadata

    def watched_step() -> Any:
        seen.builds.append([])
        outputs = step()
        seen.tokens.append({out.request_id: tuple(out.outputs[0].token_ids) for out in outputs})
        return outputs

    def watched_build(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        before = digests(batch, "given")
        metadata = build(self, batch, *args, **kwargs)
        seen.builds[-1].append(before | digests(metadata, "made"))
        return metadata

    engine.step, AttentionGroup.build_metadata = watched_step, watched_build


def volatile_fields(right: Seen, again: Seen) -> set[str]:
    """Return the fields that builders make anew in each process."""
    builds = zip(chain(*right.builds), chain(*again.builds), strict=False)
    return {
        field
        for build, other in builds
        for field in {**build, **other}
        if field.startswith("made.") and build.get(field) != other.get(field)
    }


def differences(right: Seen, got: Seen, volatile: Set[str] = frozenset()) -> Iterator[str]:
    """Yield a line on each build, and on each step's tokens, that differ."""
    pairs = zip(right.tokens, got.tokens, right.builds, got.builds, strict=True)
    for number, (tokens, others, builds, ours) in enumerate(pairs, 1):
        for index, (build, other) in enumerate(zip(builds, ours, strict=False)):
            if place := first_difference(build, other, volatile):
                yield f"step {number}, build {index}: {place} differs"
        if len(builds) != len(ours):
            yield f"step {number}: {len(builds)} builds without ours, {len(ours)} with ours"
        if tokens != others:
            named = [name for name in {**tokens, **others} if tokens.get(name) != others.get(name)]
            yield f"step {number}: the tokens of request {named[0]} differ"


def compare(name: str, steps: int, seed: int) -> tuple[bool, str, Seen]:
    """Return if a configuration is equal, a line on it, and what the run with ours has seen."""
    right, again, got = (
        _fresh(run_engine, name, steps, seed, ours=ours) for ours in (False, False, True)
    )
    volatile = volatile_fields(right, again)
    lines = [f"without ours, {line}" for line in differences(right, again, volatile)]
    lines += differences(right, got, volatile)
    requests = {request for step in got.tokens for request in step}
    equal = f"{len(lines)} differences, the first: {lines[0]}" if lines else "equal"
    text = f"{name}: {equal}; {steps} steps, {sum(map(len, got.builds))} builds"
    text += f", {len(requests)} requests"
    if volatile:
        text += f"; not compared: {', '.join(sorted(volatile))}"
    return not lines, text, got


def _fresh(function: Callable[..., _Result], *args: Any, **kwargs: Any) -> _Result:
    """Call a function in a new process: a second engine of one fails after one that speculates."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as process:
        return process.submit(function, *args, **kwargs).result()


def main(arguments: Iterable[str] | None = None) -> int:
    """Print the result of each configuration, then the calls of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="NAME", help=", ".join(live_scenarios.ALL))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timed", type=int, default=400, help="steps that are timed, 0 for none")
    options = parser.parse_args(arguments)
    calls, earlier = Counter[str](), Counter[str]()
    replaced: dict[str, None] = {}
    differs = False
    for name in options.scenarios or DEFAULT:
        equal, text, got = compare(name, options.steps, options.seed)
        print(text, flush=True)
        differs |= not equal
        replaced |= dict.fromkeys(got.replaced)
        calls += got.calls
        earlier += got.earlier
        called = ", ".join(f"{function} {count}" for function, count in got.calls.items())
        print(f"    calls of ours: {called or 'none'}", flush=True)
        if options.timed:
            print(f"    {_fresh(time_engine, name, options.timed, options.seed)}", flush=True)
    started = [function for function in earlier if not calls[function]]
    never = [function for function in replaced if not (calls + earlier)[function]]
    print(f"called: {', '.join(f'{function} {count}' for function, count in calls.most_common())}")
    print(f"called while engines start only: {', '.join(started) or 'none'}")
    print(f"replaced and never called, so not tried: {', '.join(never) or 'none'}")
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
