"""Tests of campaigns on a Ray of two nodes: processes, nodes and drivers that are killed."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="campaigns need Ray: pip install 'attnproof[campaign]'")

pytestmark = pytest.mark.campaign

BACKEND = Path(__file__).parents[3] / "examples" / "wrong_backend.py"
BUGS = {
    "split_decodes_and_prefills": "zero-length (padded) rows miscounted",
    "build_slot_mapping": "32-bit overflow",
    "_compute_slot_mapping_numpy": "repeats the values of an earlier tile",
}
"""Diagnosis of the bug that each operation of the backend has."""
TASKS = 7
_MOST_S = 400


@pytest.fixture
def cluster():
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 100 << 20}
    made = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    made.second = made.add_node(**small)
    made.wait_for_nodes()
    yield made
    made.shutdown()


def start(out: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "attnproof", "campaign", "--candidate", str(BACKEND)]
    command += ["--ops", ",".join(BUGS), "--seed", "5", "--examples", "45", "--out", str(out)]
    return subprocess.Popen(
        [*command, "--tasks", str(TASKS), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def ended_tasks(out: Path) -> list[tuple[str, int]]:
    file = out / "campaign.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    whole = [json.loads(line) for line in lines if line.endswith("\n")]
    return [(one["pair"][0], one["number"]) for one in whole if one["type"] == "task"]


def wait_for(what: str, condition) -> None:
    end = time.monotonic() + _MOST_S
    while not condition():
        assert time.monotonic() < end, f"no {what} within {_MOST_S} s"
        time.sleep(0.1)


def kill(title: str) -> list[int]:
    """Kill the processes of this test's cluster that have the title; return their ids."""
    killed = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().startswith(title.encode()) and is_ours(folder):
                os.kill(int(folder.name), signal.SIGKILL)
                killed.append(int(folder.name))
        except (OSError, ProcessLookupError):
            continue
    return killed


def is_ours(folder: Path) -> bool:
    """True if the process descends from this one."""
    while folder.name not in ("0", "1", str(os.getpid())):
        parent = re.search(r"^PPid:\s*(\d+)", (folder / "status").read_text(), re.MULTILINE)
        folder = folder.with_name(parent[1])
    return folder.name == str(os.getpid())


def check_report(out: Path, process: subprocess.Popen[str]) -> str:
    """Check that each bug is one finding and each task ran once; return the output."""
    printed, _ = process.communicate(timeout=_MOST_S)
    assert process.returncode == 1, printed
    summary = json.loads((out / "summary.json").read_text())
    found = [(one["operation"], one["diagnosis"]) for one in summary["findings"]]
    assert sorted(found) == sorted(BUGS.items()), printed
    assert all(one["requests"] <= 3 for one in summary["findings"]), "a finding is not shrunk"
    tasks = Counter(ended_tasks(out))
    assert tasks.total() == TASKS
    assert max(tasks.values()) == 1, "a task was counted twice"
    return printed


def test_killed_processes_lose_no_finding(cluster, tmp_path):
    process = start(tmp_path / "out", "--address", cluster.address)
    wait_for("task", lambda: ended_tasks(tmp_path / "out"))
    assert kill("ray::carry_out")
    assert kill("ray::Keeper")
    check_report(tmp_path / "out", process)


def test_a_removed_node_loses_no_finding(cluster, tmp_path):
    process = start(tmp_path / "out", "--address", cluster.address)
    wait_for("task", lambda: ended_tasks(tmp_path / "out"))
    cluster.remove_node(cluster.second, allow_graceful=False)
    check_report(tmp_path / "out", process)


def test_a_killed_driver_is_resumed(cluster, tmp_path):
    out = tmp_path / "out"
    process = start(out, "--address", cluster.address)
    wait_for("two tasks", lambda: len(ended_tasks(out)) >= 2)
    process.kill()
    process.communicate()
    before = (out / "campaign.jsonl").read_bytes()
    before = before[: before.rindex(b"\n") + 1]
    tasks = ended_tasks(out)
    assert len(tasks) < TASKS
    printed = check_report(out, start(out, "--address", cluster.address))
    assert f"goes on after {len(tasks)} tasks" in printed
    assert (out / "campaign.jsonl").read_bytes().startswith(before)


def test_ctrl_c_ends_with_a_report(cluster, tmp_path):
    """Without --address: Ray is started, also where a cluster is running."""
    out = tmp_path / "out"
    process = start(out, "--jobs", "2")
    wait_for("task with a finding", lambda: len(ended_tasks(out)) >= 1)
    os.killpg(process.pid, signal.SIGINT)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 1, printed
    summary = json.loads((out / "summary.json").read_text())
    found = {one["operation"]: one["diagnosis"] for one in summary["findings"]}
    assert found
    assert found.items() <= BUGS.items()
    assert "interrupted" in printed
    check_report(out, start(out, "--jobs", "2"))


def test_an_address_that_is_not_of_ray_ends_within_a_minute(tmp_path):
    out = tmp_path / "out"
    begun = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        process = start(out, "--address", address)
        printed, _ = process.communicate(timeout=_MOST_S)
    assert process.returncode == 5
    assert printed.startswith(f"attnproof: no Ray cluster answers at --address {address}: ")
    assert printed.count("\n") == 1
    assert time.monotonic() - begun < 60
    assert ended_tasks(out) == []
