"""Record live engines in every configuration, verify the recordings, print what inputs they fill.

`tox run -e live-0.32` makes the environment and runs this. Requests have lengths of the built-in
sampler; with ATTNPROOF_TRACES, every second configuration those of a trace. The exit code is that
of `attnproof verify`, and 3 for fewer steps than `--least`.

    python tools/live_lane.py --steps 250
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from live_coverage import filled_cells, summary
from live_scenarios import ALL

from attnproof.harness.cases.recorded.reading import recorded_steps, recording_files
from attnproof.harness.running.errors import INCOMPLETE

_TOOLS = Path(__file__).parent
_TRACES = ("azure2023/*.csv", "mooncake/*.jsonl")
"""Files below ATTNPROOF_TRACES that have lengths of requests."""

_RECORDED_ONLY = ("--examples", "10", "--no-vary", "--steps", "400")


def sources() -> list[str]:
    """Return where configurations take the lengths of their requests from, in turn."""
    folder = os.environ.get("ATTNPROOF_TRACES", "")
    traces = [str(path) for pattern in _TRACES for path in sorted(Path(folder).glob(pattern))]
    if folder and not traces:
        raise SystemExit(f"ATTNPROOF_TRACES is {folder}: no {' and no '.join(_TRACES)}")
    return [source for trace in traces for source in ("sampler", trace)] or ["sampler"]


def record(name: str, out: Path, steps: int, seed: int, source: str) -> int:
    """Record a configuration into a folder of its own; return the number of its steps."""
    command = [sys.executable, "-m", "attnproof", "record", "--out", str(out), "--"]
    command += [sys.executable, str(_TOOLS / "live_scenarios.py"), name]
    command += ["--steps", str(steps), "--seed", str(seed), "--lengths", source]
    print(f"{name}, lengths of {Path(source).name}", flush=True)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout + done.stderr)
        raise SystemExit(f"{name}: exit code {done.returncode}")
    print("".join(f"    {line}\n" for line in done.stdout.splitlines()[:-1]), end="", flush=True)
    return sum(bool(s.builds) for file in recording_files(out) for s in recorded_steps(file, []))


def verify(folders: Sequence[Path], out: Path, options: Sequence[str]) -> int:
    """Hold the recordings against the reference, run the engine's functions on them.

    Few cases are drawn: `tox run -e vllm-0.32` draws them. `options` of `verify` come last.
    """
    command = [sys.executable, "-m", "attnproof", "verify", "--candidate", "vllm", *_RECORDED_ONLY]
    command += [word for folder in folders for word in ("--recorded", str(folder))]
    return subprocess.run([*command, "--out", str(out), *options], check=False).returncode


def main(arguments: Iterable[str] | None = None) -> int:
    """Record, verify, and print the inputs that the recordings fill."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=250, help="steps of each configuration")
    parser.add_argument("--least", type=int, default=2000, help="fewest steps in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("reports/live-0.32"))
    parser.add_argument("--only", nargs="*", default=list(ALL), choices=ALL, metavar="NAME")
    options, others = parser.parse_known_args(None if arguments is None else list(arguments))
    recordings = options.out / "recordings"
    shutil.rmtree(recordings, ignore_errors=True)  # those of an earlier run
    folders, total, traces = [], 0, sources()
    for number, name in enumerate(options.only):
        folders.append(recordings / name)
        source = traces[number % len(traces)]
        total += record(name, folders[-1], options.steps, options.seed + number, source)
    code = verify(folders, options.out / "report", others)
    files = [file for folder in folders for file in recording_files(folder)]
    print("\n".join(summary(filled_cells(files))))
    print(f"{total:,} steps recorded in {len(folders)} configurations")
    if total < options.least:
        print(f"fewer than {options.least:,} steps")
        return code or INCOMPLETE
    return code


if __name__ == "__main__":
    sys.exit(main())
