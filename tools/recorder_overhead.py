"""Time a live engine's steps with and without the recorder, in turn (tools/live_engine.py).

In an environment with vLLM 0.32: python tools/recorder_overhead.py --steps 2000 --requests 64
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import live_engine

from attnproof.harness.recorder.recorder import Recorder
from attnproof.harness.recorder.settings import FOLDER, Settings
from attnproof.harness.recorder.vllm import hook_engine

_HOOKS = ("begin_step", "guarded", "built", "update", "split", "end_step")
_US = 1e6


class Clock:
    """Time within the hooks since the last reset, in seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, hook: Callable[..., None]) -> Callable[..., None]:
        """Return the hook, with its time added."""

        def run(*args: Any) -> None:
            begun = time.perf_counter()
            hook(*args)
            self.seconds += time.perf_counter() - begun

        return run


def main() -> None:
    """Print medians: a step with and without the recorder, and the time in its hooks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--requests", type=int, default=64)
    options = parser.parse_args()
    os.environ.update({**live_engine.ENVIRONMENT, **os.environ})
    os.environ.pop(FOLDER, None)  # the plugin's own recorder would record as well
    clock, times = Clock(), {True: [], False: []}
    hooks: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(Settings(Path(folder) / "recording"))
        for name in _HOOKS:
            setattr(recorder, name, clock.timed(getattr(recorder, name)))
        hook_engine(recorder)
        engine = live_engine.make_engine(Path(folder), options.requests)
        live_engine.drive(engine, options.requests, 50, seed=1)
        step = engine.step

        def timed_step() -> Any:
            recorder.active = not recorder.active
            clock.seconds = 0.0
            begun = time.perf_counter()
            outputs = step()
            times[recorder.active].append(time.perf_counter() - begun)
            if recorder.active:
                hooks.append(clock.seconds)
            return outputs

        engine.step = timed_step
        live_engine.drive(engine, options.requests, options.steps, seed=2)
        recorder.active = True
        recorder.stop("exit")
    on, off = (statistics.median(times[active]) * _US for active in (True, False))
    spread = statistics.quantiles(hooks, n=10)
    print(f"{options.requests} requests: {on:.0f} us a step with the recorder, {off:.0f} without")
    print(f"hooks: median {spread[4] * _US:.0f} us, 90th percentile {spread[8] * _US:.0f}")


if __name__ == "__main__":
    main()
