"""Processes that record: ended, killed, without space, and run by `attnproof record`."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from attnproof.harness.cases.recorded.reading import recorded_steps, recording_files
from attnproof.harness.recorder.settings import FOLDER, PLUGIN

FAKE = Path(__file__).parent / "fake"
ROOT = Path(__file__).parents[3]
SERVE = str(FAKE / "serve.py")


def run(*words, **variables):
    paths = [str(ROOT), str(FAKE), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, paths))
    # More threads of torch wait for each other in small tensors: a step takes 8 ms, not 0.5 ms.
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, *map(str, words)]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.fixture
def serve(forked):
    """Run the stand-in for an engine in a process that has imported torch already."""

    def run_forked(*words, **variables):
        def main():
            sys.argv = [SERVE, *map(str, words)]
            runpy.run_path(SERVE, run_name="__main__")

        return forked(main, PYTHONPATH=str(FAKE), **variables)

    return run_forked


def record(folder, *words, **variables):
    command = ("-m", "attnproof", "record", "--out", folder, *words)
    return run(*command, **variables)


def read(folder):
    [path] = recording_files(folder)
    remarks = []
    return list(recorded_steps(path, remarks)), remarks


def test_nothing_heavy_is_imported_without_the_variable():
    code = (
        "import sys; from attnproof.harness.recorder.plugin import arm;"
        "before = len(sys.meta_path); arm(); assert len(sys.meta_path) == before;"
        "assert not {'torch', 'numpy', 'msgspec', 'zstandard'} & set(sys.modules)"
    )
    done = run("-c", code, **{FOLDER: ""})
    assert done.returncode == 0, done.stderr


def test_the_engine_is_not_imported_before_it_wants_to_be(tmp_path):
    code = (
        "import sys; from attnproof.harness.recorder.plugin import arm; arm(); arm();"
        "assert 'vllm' not in sys.modules;"
        "import vllm.v1.worker.utils as u; from importlib.machinery import SourceFileLoader as L;"
        "assert type(u.__loader__) is type(u.__spec__.loader) is L;"
        "assert hasattr(u.AttentionGroup.build_metadata, '_attnproof_hooked')"
    )
    done = run("-c", code, **{FOLDER: str(tmp_path)})
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("variable", ["ATTNPROOF_RECORD_SAMPLE", "ATTNPROOF_RECORD_LIMIT"])
def test_a_bad_variable_is_one_line_and_the_engine_runs(serve, tmp_path, variable):
    done = serve(2, "0", **{FOLDER: str(tmp_path), variable: "many"})
    assert (done.returncode, done.stdout) == (0, "2 steps served\n")
    assert done.stderr.startswith("attnproof record: not armed: ValueError: ")
    assert done.stderr.count("\n") == 1


def test_without_zstandard_the_engine_runs_and_one_line_says_so(tmp_path):
    code = (
        "import sys; sys.modules['zstandard'] = None;"
        "from attnproof.harness.recorder.plugin import arm; arm(); print('served')"
    )
    done = run("-c", code, **{FOLDER: str(tmp_path)})
    assert (done.returncode, done.stdout) == (0, "served\n")
    assert done.stderr.startswith("attnproof record: not armed: ModuleNotFoundError: ")
    assert done.stderr.count("\n") == 1


def test_a_process_that_is_killed_leaves_what_was_flushed(serve, tmp_path):
    done = serve(30, "killed", **{FOLDER: str(tmp_path)})
    assert done.returncode == -9
    steps, [remark, _] = read(tmp_path)
    assert len(steps) == 30
    assert remark.startswith("cut off, killed or still being written: 30 whole steps read, 0 bytes")


def test_a_full_disk_ends_the_recording_and_not_the_engine(serve, tmp_path):
    done = serve(1000, "full", **{FOLDER: str(tmp_path)})
    assert (done.returncode, done.stdout) == (0, "1000 steps served\n")
    assert done.stderr == (
        "attnproof record: stopped, the engine goes on: OSError: [Errno 27] File too large\n"
    )
    steps, [remark, _] = read(tmp_path)
    assert 0 < len(steps) < 1000
    assert remark.startswith("cut off")


def test_a_folder_that_cannot_be_written_ends_the_recording_and_not_the_engine(serve, tmp_path):
    (tmp_path / "file").touch()
    done = serve(3, "0", **{FOLDER: str(tmp_path / "file")})
    assert (done.returncode, done.stdout) == (0, "3 steps served\n")
    assert done.stderr.startswith("attnproof record: stopped, the engine goes on: FileExistsError")
    assert done.stderr.count("\n") == 1


def test_the_verb_returns_the_exit_code_and_says_what_was_recorded(tmp_path):
    done = record(tmp_path / "a", "--sample", 2, "--", sys.executable, SERVE, 10, "7")
    assert (done.returncode, done.stderr) == (7, "")
    served, line, last = done.stdout.splitlines()
    [path] = recording_files(tmp_path / "a")
    assert served == "10 steps served"
    assert line.startswith(f"{path.name}: 5 steps, ")
    assert last == f"5 steps recorded; next: attnproof verify --recorded {tmp_path / 'a'}"


def test_a_second_recording_in_the_folder_is_told_alone(tmp_path):
    for steps in (3, 4):
        done = record(tmp_path, "--", sys.executable, SERVE, steps, "0")
        assert done.stdout.splitlines()[-1].startswith(f"{steps} steps recorded")
    assert len(recording_files(tmp_path)) == 2


def test_the_verb_tells_a_full_disk_and_keeps_the_exit_code_of_the_command(tmp_path):
    done = record(tmp_path, "--", sys.executable, SERVE, 1000, "full")
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "attnproof record: stopped, the engine goes on: OSError: [Errno 27] File too large"
    ]
    steps, _ = read(tmp_path)
    _, line, last = done.stdout.splitlines()
    assert f"{len(steps)} whole steps read" in line
    assert last.startswith(f"{len(steps)} steps recorded")


def test_recorders_of_two_engines_at_a_time_lose_nothing(tmp_path):
    code = f"""
import subprocess, sys
engines = [subprocess.Popen([sys.executable, {SERVE!r}, str(n), "0"]) for n in (20, 30)]
sys.exit(max(one.wait() for one in engines))
"""
    done = record(tmp_path, "--", sys.executable, "-c", code)
    assert (done.returncode, done.stderr) == (0, "")
    counts = [len(list(recorded_steps(path, []))) for path in recording_files(tmp_path)]
    assert sorted(counts) == [20, 30]
    assert done.stdout.splitlines()[-1].startswith("50 steps recorded")


def test_a_limit_ends_the_file(tmp_path):
    record(tmp_path, "--limit", 3, "--", sys.executable, SERVE, 9, "0")
    steps, remarks = read(tmp_path)
    assert (len(steps), remarks) == (3, ["fields that were not recorded: input_ids"])


def test_the_plugin_is_named_where_plugins_are_listed(tmp_path):
    code = "import os; print(os.environ['VLLM_PLUGINS'])"
    done = record(tmp_path, "--", sys.executable, "-c", code, VLLM_PLUGINS="theirs")
    assert done.stdout == f"theirs,{PLUGIN}\n"


def test_a_command_that_records_nothing_is_incomplete(tmp_path):
    done = record(tmp_path, "--", sys.executable, "-c", "")
    assert done.returncode == 3
    assert "no engine step was recorded" in done.stderr
    assert record(tmp_path, "--", sys.executable, "-c", "raise SystemExit(9)").returncode == 9


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--", "no-such-command"), "attnproof: no-such-command cannot be run: No such file"),
        (("--sample", "0", "--", "true"), "attnproof: --sample is 0: must be at least 1"),
        (("--limit", "-1", "--", "true"), "attnproof: --limit is -1: must be at least 0"),
    ],
)
def test_a_misuse_is_one_line(tmp_path, words, message):
    done = record(tmp_path / "a", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1


def test_a_signal_that_ends_the_command_is_in_the_exit_code(tmp_path):
    code = "import os; os.kill(os.getpid(), 9)"
    assert record(tmp_path, "--", sys.executable, "-c", code).returncode == 128 + 9


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "a").write_text("")
    done = record(tmp_path / "a", "--", "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"attnproof: --out {tmp_path / 'a'} cannot be written: File exists\n"
