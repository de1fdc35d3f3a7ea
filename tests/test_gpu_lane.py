"""Tests of the GPU lane without a GPU: on a stand-in device, and its reports of skipped work.

`fake_cuda.py` is the stand-in. `pytest -m gpu` and `tools/gpu_suite.sh` test a real GPU on
a machine that has one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.lanes

ROOT = Path(__file__).parents[1]
NO_GPU_HERE = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
ABSENT = ("jinja2", "junitparser", "scipy", "jsonschema", "simpleeval")
"""Packages that a GPU machine without a package index may lack."""
WITHOUT_ABSENT = f"""
import sys
for name in {ABSENT!r}:
    sys.modules[name] = None
from attnproof.harness.cli import main
main()
"""


def run(*arguments: str, interpret: bool = False, **more: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the checkout."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **more}
    environment.pop("TRITON_INTERPRET", None)
    if interpret:
        environment["TRITON_INTERPRET"] = "1"
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def suite():
    spec = importlib.util.spec_from_file_location("gpu_suite", ROOT / "tools" / "gpu_suite.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@NO_GPU_HERE
def test_the_tests_of_the_gpu_lane_pass_on_the_stand_in():
    long = "not consecutive_builds and not random_batches and not sampled and not long"
    chosen = ("-m", "gpu", "-k", long, "-q", "-p", "no:cacheprovider")
    done = run("tests/fake_cuda.py", "pytest", *chosen, "tests/optimized", interpret=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "no CUDA device" in done.stdout  # tests with real sizes are skipped


@NO_GPU_HERE
def test_operations_pass_on_the_stand_in(tmp_path):
    names = "build_slot_mapping,copy_blocks,create_fast_prefill_custom_backend"
    done = _verify("--ops", names, "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS: " in done.stdout


@NO_GPU_HERE
def test_a_sync_is_a_finding(tmp_path):
    candidate = str(ROOT / "tests" / "harness" / "candidates" / "waits.py")
    names = ("--ops", "slice_query_start_locs", "--out", str(tmp_path))
    done = _verify("--candidate", candidate, "--contract", "strict", *names)
    assert done.returncode == 1, done.stdout + done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    [finding] = summary["findings"]
    assert finding["diagnosis"] == "synchronises host and device"
    assert finding["oracle"] == "cost"


@NO_GPU_HERE
def test_block_sizes_make_no_versions_of_a_kernel(tmp_path):
    quick = ("--examples", "12", "--steps", "0", "--no-remember", "--out", str(tmp_path))
    names = ("--ops", "mamba_get_block_table_tensor")
    tool = ("tests/fake_cuda.py", "tools/kernel_versions.py")
    done = run(*tool, *names, *quick, interpret=True)
    [line] = [line for line in done.stdout.splitlines() if "_state_blocks_kernel: " in line]
    number, _, arguments = line.split(maxsplit=2)
    dtypes, powers = 4, 2
    assert 1 < int(number) <= dtypes * powers
    assert "POWERS 2" in arguments
    assert "block_size" not in arguments


def _verify(*arguments: str) -> subprocess.CompletedProcess[str]:
    quick = ("--examples", "2", "--steps", "0", "--no-remember")
    return run("tests/fake_cuda.py", "verify", *quick, *arguments, interpret=True)


def test_verify_runs_without_the_packages_that_a_gpu_machine_may_lack(tmp_path):
    quick = ("--ops", "is_block_tables_empty", "--candidate", "reference", "--examples", "3")
    done = run("-c", WITHOUT_ABSENT, "verify", *quick, "--steps", "0", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    written = {path.name for path in tmp_path.iterdir()}
    assert "summary.json" in written
    assert not written & {"index.html", "junit.xml"}


@NO_GPU_HERE
def test_the_suite_reports_a_missing_gpu(tmp_path):
    out = tmp_path / "gpu.json"
    done = subprocess.run(
        [ROOT / "tools" / "gpu_suite.sh", "--out", out, "--commit", "abc"],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3, done.stdout + done.stderr
    record = json.loads(out.read_text(encoding="utf-8"))
    assert (record["verdict"], record["reason"]) == ("UNVERIFIED", "no CUDA device")
    assert (record["device"], record["commit"]) == (None, "abc")
    assert {part["result"] for part in record["parts"].values()} == {"not run"}
    assert "UNVERIFIED (no CUDA device)" in done.stdout


def test_a_dry_run_runs_all_parts_and_is_unverified(tmp_path):
    out = tmp_path / "gpu.json"
    done = run("tools/gpu_suite.py", "--device", "cpu", "--seconds", "300", "--out", str(out))
    assert done.returncode == 3, done.stdout + done.stderr
    record = json.loads(out.read_text(encoding="utf-8"))
    assert record["verdict"] == "UNVERIFIED"
    parts = record["parts"]
    assert parts["compile"]["result"] == "passed", parts["compile"]
    assert "_slot_mapping_kernel" in parts["compile"]["compiled"]
    assert parts["verify"]["verdict"] == "PASS", parts["verify"]
    assert parts["tests"]["result"] in ("skipped", "passed"), parts["tests"]
    assert parts["bench"]["verdict"] == "PASS", parts["bench"]
    assert parts["bench"]["performance"]["timings"] > 0


def _row(evidence: Path) -> str:
    """Return the line of docs/lanes.md for a file of the suite."""
    record = json.loads(evidence.read_text(encoding="utf-8"))
    parts, versions = record["parts"], record["versions"]
    verdicts = Counter(operation["verdict"] for operation in parts["verify"]["operations"])
    incomplete = [
        f"{n} {part['result']}" for n, part in parts.items() if part["result"] != "passed"
    ]
    cells = (
        record["commit"][:8],
        record["started"][:10],
        record["device"]["name"],
        versions["torch"],
        versions["triton"],
        record["verdict"],
        ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items()),
        f"{parts['verify']['counts']['cases']:,}",
        ", ".join(incomplete) or "none",
    )
    return f"| {' | '.join(cells)} |"


def test_the_page_says_what_was_seen_on_which_card():
    rows = [_row(path) for path in sorted((ROOT / "reports/evidence").glob("*.json"))]
    page = (ROOT / "docs/lanes.md").read_text(encoding="utf-8")
    table = page.partition("| commit | day |")[2].split("\n\n")[0].splitlines()[2:]
    assert sorted(table) == sorted(rows)


def test_a_suite_says_how_far_a_part_came(suite):
    verdicts = ["PASS", "PASS", "UNVERIFIED"]
    part = {"operations": [{"verdict": each} for each in verdicts], "compiled": {"a": 2, "b": 1}}
    assert suite.how_far(part) == "2 PASS, 1 UNVERIFIED of 3 operations; 3 kernels"
    assert suite.how_far({"last_lines": ["...", "3 passed in 1.20s"]}) == "3 passed in 1.20s"
    assert suite.how_far({"reason": "pytest is not installed"}) == "pytest is not installed"


_LAUNCH = """
import sys
import tempfile
sys.path[:0] = [".", "tools"]
import host_costs
with tempfile.TemporaryDirectory() as folder:
    host_costs.install_cuda(folder)
    from host_calls import rows
    next(ours for name, ours, _ in rows({}) if name.startswith("build_slot_mapping"))()
"""


def test_a_launch_finds_the_kernel_that_was_compiled_ahead(suite, tmp_path):
    cache = {"TRITON_CACHE_DIR": str(tmp_path)}
    done = run("tools/kernel_resources.py", "--fill", "90", "--only", "slot mapping", **cache)
    assert done.returncode == 0, done.stdout + done.stderr
    compiled = suite._compiled(tmp_path)
    assert compiled
    done = run("-c", _LAUNCH, **cache)
    assert done.returncode == 0, done.stderr
    assert suite._compiled(tmp_path) == compiled


def test_a_suite_counts_the_versions_of_kernels(suite, tmp_path):
    for folder, kernel in (("A", "one"), ("B", "two"), ("C", "two")):
        (tmp_path / folder).mkdir()
        for name in (f"{kernel}.json", f"__grp__{kernel}.json", f"{kernel}.cubin"):
            (tmp_path / folder / name).touch()
    assert suite._compiled(tmp_path) == {"two": 2, "one": 1}
    assert suite._compiled(tmp_path / "absent") == {}


@pytest.mark.parametrize(
    ("results", "unverified", "verdict"),
    [
        (("passed", "passed", "passed", "passed"), "", "PASS"),
        (("passed", "passed", "passed", "failed"), "", "FAIL"),
        (("passed", "passed", "passed", "failed"), "no CUDA device", "FAIL"),
        (("passed", "passed", "passed", "passed"), "no CUDA device", "UNVERIFIED"),
        (("passed", "passed", "incomplete", "passed"), "", "UNVERIFIED"),
        (("passed", "passed", "not run", "passed"), "", "UNVERIFIED"),
        (("passed", "out of time", "passed", "passed"), "", "UNVERIFIED"),
    ],
)
def test_the_verdict_of_a_suite(suite, results, unverified, verdict):
    parts = {name: {"result": result} for name, result in zip(suite.PARTS, results, strict=True)}
    assert suite.verdict_of(parts, unverified)[0] == verdict


def test_a_finding_of_an_interrupted_part_is_a_failure(suite):
    parts = {"verify": {"result": "out of time", "verdict": "FAIL"}}
    assert suite.verdict_of(parts, "") == ("FAIL", "failed: verify")


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN])
def test_a_part_that_takes_too_long_is_interrupted(suite, tmp_path, handler):
    previous = signal.signal(signal.SIGINT, handler)
    try:
        _expect_an_interrupted_part(suite, tmp_path)
    finally:
        signal.signal(signal.SIGINT, previous)


def _expect_an_interrupted_part(suite, tmp_path):
    command = [sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(60)"]
    part = suite.run(command, 1.0, tmp_path / "log", {})
    assert part["result"] == "out of time"
    assert part["seconds"] < 20
    assert part["last_lines"][0] == "begun"


@pytest.mark.parametrize(
    ("summary", "result"),
    [("5 passed, 3 skipped in 2.1s", "passed"), ("8 skipped in 0.1s", "skipped")],
)
def test_tests_that_were_all_skipped_have_not_passed(suite, summary, result):
    made = suite.none_is_skipped({"result": "passed", "last_lines": ["sss", summary]})
    assert made["result"] == result


def test_an_interrupt_of_the_suite_ends_the_part_that_runs(suite, tmp_path, monkeypatch):
    started = []

    class Interrupted(subprocess.Popen):
        def wait(self, timeout=None):
            if not started:
                started.append(self)
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(suite.subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        suite.run([sys.executable, "-c", "import time; time.sleep(60)"], 50, tmp_path / "log", {})
    assert started[0].returncode == -9


def test_the_commit_of_a_changed_checkout_is_marked(suite, monkeypatch):
    outputs = {"rev-parse": "abc", "status": " M file"}
    monkeypatch.setattr(suite, "_output", lambda *command: outputs[command[1]])
    assert suite.commit_of_checkout() == "abc+"
    outputs["status"] = None
    assert suite.commit_of_checkout() == "abc"
    outputs["rev-parse"] = None
    assert suite.commit_of_checkout() is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gpu_suite.py", "--out", "/proc/none/x.json"), "/proc/none/x.json cannot be written"),
        (("gpu_suite.py", "--out", "tools"), "tools cannot be written: Is a directory"),
        (("gpu_suite.py", "--seconds", "nan"), "nan is not above 0"),
        (("kernel_resources.py", "--jobs", "0"), "0 is below 1"),
    ],
)
def test_malformed_options_of_a_tool_are_usage_errors(arguments, message):
    tool, *options = arguments
    done = run(f"tools/{tool}", *options)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
