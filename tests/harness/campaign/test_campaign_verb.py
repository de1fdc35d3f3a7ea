"""The command without Ray's workers: one line for each mistake, and a report of what there is."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnproof.harness.campaign import ray_pool
from attnproof.harness.campaign.ray_pool import RayPool, require_ray
from attnproof.harness.running import extras
from attnproof.harness.running.errors import InfrastructureError, UsageError
from attnproof.harness.verbs import campaign as verb
from attnproof.harness.verbs.options import CampaignOptions
from tests.harness.campaign.instant_pool import NAMES, InstantPool

SOURCE = "".join(f"def {name}(*args, **kwargs):\n    raise ValueError\n" for name in NAMES)


@pytest.fixture(autouse=True)
def no_ray_is_needed(monkeypatch):
    monkeypatch.setattr(verb, "require_ray", lambda: None)


@pytest.fixture
def options(tmp_path) -> dict[str, object]:
    (tmp_path / "mine.py").write_text(SOURCE)
    return {
        "candidates": [str(tmp_path / "mine.py")],
        "ops": ",".join(NAMES),
        "out": tmp_path / "out",
        "tasks": 4,
        "examples": 10,
    }


def run(options: dict[str, object], bugs=None, **changes) -> int:
    def make_pool(_address: str, _jobs: int, examples: Path) -> InstantPool:
        return InstantPool(examples, bugs or {})

    return verb.campaign(CampaignOptions(**(options | changes)), make_pool=make_pool)


def test_the_report_is_that_of_verify(options, capsys):
    assert run(options, {(NAMES[0], 0): ["slots"]}) == 1
    assert run(options) == 1  # it goes on, and has nothing left to do
    out = options["out"]
    names = {path.name for path in out.iterdir()}
    assert {"index.html", "summary.json", "junit.xml", "summary.md", "results.jsonl"} <= names
    summary = json.loads((out / "summary.json").read_text())
    assert [one["operation"] for one in summary["findings"]] == [NAMES[0]]
    assert summary["counts"]["cases"] == 40
    (case,) = (out / "cases").glob("*.json")
    (line,) = (out / "results.jsonl").read_text().splitlines()
    assert json.loads(line)["verdict"] == "FAIL"
    printed = capsys.readouterr().out
    assert "FOUND       build_slot_mapping [mine] (wrong-result)" in printed
    assert printed.count("FOUND") == 1
    assert "goes on after 4 tasks, 40 cases, 1 finding" in printed
    assert case.stem in printed


def test_without_a_finding_it_passes(options):
    assert run(options) == 0


def test_an_operation_without_a_task_leaves_it_incomplete(options):
    assert run(options, tasks=1) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"examples": 11}, "--examples was 10, now 11"),
        ({"seed": 2**31}, "--seed was "),
        ({"ops": NAMES[0]}, "operations was "),
        ({"contract": "strict"}, "candidates was "),
    ],
)
def test_a_campaign_goes_on_with_the_same_options_only(options, changes, message):
    run(options)
    before = (options["out"] / "campaign.jsonl").read_bytes()
    with pytest.raises(UsageError, match=message):
        run(options, **changes)
    assert (options["out"] / "campaign.jsonl").read_bytes() == before


def test_a_candidate_that_has_changed_is_another_campaign(options, tmp_path):
    run(options)
    (tmp_path / "mine.py").write_text(f"{SOURCE}\n# corrected\n")
    with pytest.raises(UsageError, match="candidates was mine"):
        run(options)


def test_two_drivers_do_not_share_a_folder(options):
    out = options["out"]
    out.mkdir()
    descriptor = os.open(out, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        with pytest.raises(UsageError, match="is in use by another run"):
            run(options)
    finally:
        os.close(descriptor)
    assert run(options) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hours": 0.0}, "--hours is 0, expected more than 0"),
        ({"hours": float("nan")}, "--hours is nan"),
        ({"tasks": -1}, "--tasks is -1"),
        ({"examples": 0}, "--examples is 0"),
        ({"candidates": ["optimized"], "device": "meta"}, "meta"),
    ],
)
def test_a_wrong_option_is_one_line_and_nothing_is_written(options, changes, message):
    with pytest.raises(UsageError, match=message) as raised:
        run(options, **changes)
    assert "\n" not in str(raised.value)
    assert not options["out"].exists()


def test_an_error_of_the_workers_leaves_the_campaign_as_it_was(options):
    run(options)
    before = {path: path.read_bytes() for path in options["out"].rglob("*") if path.is_file()}

    def fail(*_arguments) -> InstantPool:
        raise InfrastructureError("no Ray cluster answers")

    given = CampaignOptions(**(options | {"tasks": 9}))
    with pytest.raises(InfrastructureError):
        verb.campaign(given, make_pool=fail)
    after = {path: path.read_bytes() for path in options["out"].rglob("*") if path.is_file()}
    assert after == before


def test_without_ray_the_message_names_the_extra(monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda _name: None)
    with pytest.raises(UsageError) as raised:
        require_ray()
    assert str(raised.value) == 'campaign needs Ray: pip install "attnproof[campaign]"'


@pytest.mark.parametrize("address", ["ray://host:10001", "host", "host:", ":6379", "host:x"])
def test_an_address_of_another_form_is_refused(address, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", object())
    with pytest.raises(UsageError, match="expected auto or HOST:PORT"):
        RayPool(address, 1, tmp_path)


def test_a_port_that_nobody_listens_at_is_told_at_once(monkeypatch):
    def refuse(*_arguments, **_named):
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(ray_pool.socket, "create_connection", refuse)
    with pytest.raises(InfrastructureError, match="no Ray cluster answers at --address h:1: "):
        ray_pool._check_address("h:1")


def test_help_loads_neither_ray_nor_torch():
    code = "import sys; sys.argv = ['attnproof', 'campaign', '--help']\n"
    code += "from attnproof.harness.cli import main\ntry: main()\n"
    code += "except SystemExit: print(sorted({'ray', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--address" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_gpu_of_this_machine_adds_no_candidate(options, monkeypatch):
    monkeypatch.setattr("attnproof.harness.verbs.verification.gpu_name", lambda: "a GPU")
    chosen = CampaignOptions(**(options | {"candidates": []}))
    plan = verb._plan(chosen, verb._verify_options(chosen))
    assert {candidate.device for candidate in plan.candidates} == {"cpu"}
