"""Verify, test and measure on this machine's GPU, and write the results to one JSON file.

    tools/gpu_suite.sh [--out gpu.json] [--seconds 900] [--commit ID]
    tools/gpu_suite.sh --device cpu     a dry run of the parts, which verifies nothing

A part that fails or takes too long does not stop the next one, and the file is written after
each. Kernels are compiled first, on all cores: tasks of `verify` would wait for each.
Exit codes: 0 all parts passed, 1 a part failed, 3 a part is UNVERIFIED: no GPU, too little
time, no pytest.
reports/README.md describes the file.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = "attnproof.gpu_suite/1"
SHARES = {"compile": 0.1, "verify": 0.5, "tests": 0.14, "bench": 0.26}
"""Share of the total time for each part; the next part may use time that is left."""
GRACE_SECONDS = 40.0
"""Seconds in which an interrupted part may write its report."""
GPU_TESTS = ("tests/optimized", "tests/harness/timing", "tests/harness/running/exchange")
"""Folders of all tests with the marker: collecting the others takes a minute."""
_MOST_JOBS = 16
"""Maximum of operations verified at a time, each with a context on the GPU."""
_CACHE = "triton"
"""Folder of Triton's cache, shared by the parts."""
NO_GPU = "no CUDA device"
DRY_RUN = "a dry run on the CPU verifies nothing of a GPU"
Part = dict[str, Any]


def run(command: list[str], seconds: float, log: Path, more: dict[str, str]) -> Part:
    """Run a part for at most `seconds`; then interrupt it, and kill it after the grace time."""
    began = time.monotonic()
    # A shell that starts this tool in the background has SIGINT ignored, and a part inherits that.
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | more,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        signal.signal(signal.SIGINT, previous)
        late = False
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            late = True
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_SECONDS)
        finally:  # the part has its own session: Ctrl-C in this process does not reach it
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return {
        "result": "out of time" if late else "passed" if process.returncode == 0 else "failed",
        "status": process.returncode,
        "seconds": round(time.monotonic() - began, 1),
        "command": " ".join(command[1:]),
        "last_lines": [line[:300] for line in lines[-40:]],
    }


def compile_kernels(options: argparse.Namespace, seconds: float, folder: Path) -> Part:
    """Compile the launches of engines for this card into the cache of the other parts."""
    command = [sys.executable, "tools/kernel_resources.py", "--jobs", str(_cores())]
    if options.device == "cpu":
        command += ["--fill", "90", "--only", "slot mapping"]
    else:
        import torch

        major, minor = torch.cuda.get_device_capability()
        command += ["--fill", str(10 * major + minor)]
    part = run(command, seconds, folder / "compile.log", _cache(folder))
    part["compiled"] = _compiled(folder / _CACHE)
    return part


def _cores() -> int:
    """Return the number of processes to start."""
    return min(_MOST_JOBS, len(os.sched_getaffinity(0)))


def _cache(folder: Path) -> dict[str, str]:
    """Return the variable of Triton's cache: with the user's, kernels would not be counted."""
    return {"TRITON_CACHE_DIR": str(folder / _CACHE)}


def verify(options: argparse.Namespace, seconds: float, folder: Path) -> Part:
    """Run `attnproof verify` on the device; return its verdict and findings."""
    out = folder / "report"
    command = [sys.executable, "-m", "attnproof", "verify", "--device", options.device]
    command += ["--out", str(out), "--no-remember", "--timeout", "60", "--profile"]
    # Kernels are compiled on the host, which takes much of the time: eight jobs were too few.
    command += ["--jobs", str(_cores())]
    if options.device == "cpu":
        command += ["--ops", "build_slot_mapping,slice_query_start_locs"]
        command += ["--examples", "5", "--steps", "2"]
    before = _compiled(folder / _CACHE)
    part = run(command, seconds, folder / "verify.log", _cache(folder))
    part["compiled"] = dict(Counter(_compiled(folder / _CACHE)) - Counter(before))
    part |= _summary(out / "summary.json") or _summary(out / "incomplete" / "summary.json")
    return _incomplete(part)


def _incomplete(part: Part) -> Part:
    """Set the result to "incomplete" if a command of attnproof exited with 3."""
    if part["status"] == 3 and part["result"] == "failed":
        part["result"] = "incomplete"
    return part


def _compiled(cache: Path) -> dict[str, int]:
    """Return the versions of each kernel that were compiled, most first."""
    names = (path.stem for path in cache.glob("*/*.json"))
    return dict(Counter(name for name in names if not name.startswith("__grp__")).most_common())


def how_far(part: Part) -> str:
    """Return what a part has done, also one that ran out of time: a phrase for its line."""
    if "operations" not in part:
        return part["last_lines"][-1] if part.get("last_lines") else part.get("reason", "")
    verdicts = Counter(operation["verdict"] for operation in part["operations"])
    counted = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
    return f"{counted} of {verdicts.total()} operations; {sum(part['compiled'].values())} kernels"


_KEPT = ("verdict", "reason", "seed", "counts", "operations", "findings")


def _summary(path: Path, kept: tuple[str, ...] = _KEPT) -> Part:
    if not path.exists():
        return {}
    summary = json.loads(path.read_text(encoding="utf-8"))
    return {name: summary[name] for name in kept if name in summary}


def tests(_: argparse.Namespace, seconds: float, folder: Path) -> Part:
    """Run the tests with the marker `gpu`, which are in these folders."""
    if find_spec("pytest") is None:
        return {"result": "not run", "reason": "pytest is not installed"}
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-rs", "-p", "no:cacheprovider"]
    return none_is_skipped(
        run([*command, *GPU_TESTS], seconds, folder / "tests.log", _cache(folder))
    )


def none_is_skipped(part: Part) -> Part:
    """Set the result to "skipped" if all tests were skipped, although pytest exited with 0."""
    summary = part["last_lines"][-1] if part["last_lines"] else ""
    if part["result"] == "passed" and " passed" not in summary:
        part["result"] = "skipped"
    return part


def bench(options: argparse.Namespace, seconds: float, folder: Path) -> Part:
    """Time attention and the cache write with `attnproof bench`, beside all peers it imports."""
    out = folder / "bench"
    command = [sys.executable, "-m", "attnproof", "bench", "--device", options.device]
    command += ["--out", str(out), "--steps", "0", "--jobs", str(_cores())]
    if options.device == "cpu":
        command += ["--ops", "slice_query_start_locs", "--seconds", "1"]
    else:
        command += ["--ops", "paged_attention,decode_attention,reshape_and_cache_flash"]
        command += ["--seconds", str(round(seconds / 3))]
    part = run(command, seconds, folder / "bench.log", _cache(folder))
    return _incomplete(part) | _summary(out / "summary.json", ("verdict", "reason", "performance"))


PARTS = {
    "compile": compile_kernels,
    "verify": verify,
    "tests": tests,
    "bench": bench,
}


def describe_device() -> Part | None:
    """Return the properties of the first GPU, None without one."""
    import torch

    if not torch.cuda.is_available():
        return None
    seen = torch.cuda.get_device_properties(0)
    return {
        "name": seen.name,
        "count": torch.cuda.device_count(),
        "capability": f"{seen.major}.{seen.minor}",
        "memory_bytes": seen.total_memory,
        "multiprocessors": seen.multi_processor_count,
        "l2_bytes": seen.L2_cache_size,
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
    }


def describe_versions() -> dict[str, str | None]:
    """Return the versions of packages that affect the results, None if not installed."""
    import torch

    from attnproof.harness.running.parent.environment import package_version

    names = ("torch", "triton", "xformers", "numpy", "numba", "hypothesis", "pytest")
    versions = {name: package_version(name) for name in names}
    return versions | {"cuda": torch.version.cuda, "python": sys.version.split()[0]}


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else None


def commit_of_checkout() -> str | None:
    """Return the commit, with "+" appended if a tracked file was changed; None without git."""
    commit = _output("git", "rev-parse", "HEAD")
    changed = _output("git", "status", "--porcelain", "--untracked-files=no")
    return f"{commit}+" if commit and changed else commit


def verdict_of(parts: dict[str, Part], unverified: str) -> tuple[str, str]:
    """Return PASS, FAIL or UNVERIFIED, and the reason."""
    failed = [name for name, part in parts.items() if part["result"] == "failed"]
    failed += [name for name, part in parts.items() if part.get("verdict") == "FAIL"]
    if failed:
        return "FAIL", f"failed: {', '.join(dict.fromkeys(failed))}"
    if unverified:
        return "UNVERIFIED", unverified
    open_ = [f"{name} {part['result']}" for name, part in parts.items()]
    open_ = [text for text in open_ if not text.endswith(" passed")]
    return ("UNVERIFIED", ", ".join(open_)) if open_ else ("PASS", "")


def main() -> int:
    """Run the command line and return the exit code."""
    options = _options()
    started, clock = datetime.datetime.now(datetime.UTC), time.monotonic()
    device = describe_device()
    unverified = NO_GPU if device is None else ""
    if options.device == "cpu":
        unverified = DRY_RUN
    parts: dict[str, Part] = {}
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "verdict": "UNVERIFIED",
        "reason": "not all parts have run",
        "started": started.isoformat(timespec="seconds"),
        "seconds": 0.0,
        "commit": options.commit or commit_of_checkout(),
        "device": device,
        "versions": describe_versions(),
        "parts": parts,
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, part in PARTS.items():
            if unverified == NO_GPU:
                parts[name] = {"result": "not run", "reason": NO_GPU}
                continue
            left = options.seconds - (time.monotonic() - clock)
            share = SHARES[name] / sum(SHARES[other] for other in list(PARTS)[len(parts) :])
            parts[name] = part(options, max(10.0, left * share), Path(folder))
            outcome = parts[name]
            _write(options.out, record, clock)
            line = f"{name}: {outcome['result']}, {outcome.get('seconds', 0)} s: {how_far(outcome)}"
            print(line, flush=True)
            if parts[name]["result"] not in ("passed", "skipped"):
                print("\n".join(parts[name].get("last_lines", [])[-15:]), flush=True)
    verdict, reason = verdict_of(parts, unverified)
    record |= {"verdict": verdict, "reason": reason}
    _write(options.out, record, clock)
    print(f"{verdict}{f' ({reason})' if reason else ''}: {options.out}")
    return {"PASS": 0, "FAIL": 1, "UNVERIFIED": 3}[verdict]


def _write(out: Path, record: dict[str, Any], clock: float) -> None:
    """Write the results so far; a machine may be taken away at any time."""
    record["seconds"] = round(time.monotonic() - clock, 1)
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/gpu_suite.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("reports/gpu_suite.json"))
    parser.add_argument("--seconds", type=float, default=900.0, help="time for all parts together")
    parser.add_argument("--commit", help="commit of this checkout, if git is not installed")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    if not options.seconds > 0:
        parser.error(f"argument --seconds: {options.seconds:g} is not above 0")
    try:  # before the parts, which take minutes
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.open("a", encoding="utf-8").close()
    except OSError as error:
        parser.error(f"argument --out: {options.out} cannot be written: {error.strerror}")
    return options


if __name__ == "__main__":
    sys.exit(main())
