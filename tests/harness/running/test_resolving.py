"""Names become candidates, and no two candidates share a name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from attnproof.harness.running.candidates import BUILT_IN, installed_target, name_of, resolve
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.interface_choice import with_interface
from attnproof.harness.running.loading import load

RIGHT = (
    "from attnproof.reference import *\nfrom attnproof.reference import _make_metadata_with_slice\n"
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a/mine.py", "b/mine.py", "optimized.py", "package/__init__.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(RIGHT, encoding="utf-8")
    return tmp_path


def test_built_in_lanes_by_default():
    assert resolve([], "auto") == list(BUILT_IN)
    assert [candidate.name for candidate in resolve([], "interpreter")] == ["optimized-triton"]
    assert [candidate.lane for candidate in resolve([], "cuda")] == ["cuda"]


def test_candidates_of_one_name_get_the_typed_names(folder):
    names = [candidate.name for candidate in resolve(["a/mine.py", "b/mine.py"], "auto")]
    assert names == ["a/mine.py", "b/mine.py"]
    names = [candidate.name for candidate in resolve(["optimized", "./optimized.py"], "auto")]
    assert names == ["optimized", "./optimized.py"]


def test_one_candidate_twice_is_one(folder):
    assert len(resolve(["a/mine.py", "a/mine.py"], "auto")) == 1


def test_package_is_named_by_its_folder(folder):
    by_folder = resolve(["./package"], "auto")[0]
    by_file = resolve(["./package/__init__.py"], "auto")[0]
    assert by_folder == by_file
    assert by_folder.name == "package"
    assert callable(load(by_folder).build_slot_mapping)


def test_lane_follows_the_device(folder):
    assert resolve(["a/mine.py"], "auto")[0].lane == "cpu"
    assert resolve(["a/mine.py"], "interpreter")[0].lane == "interpreter"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nonesuch", r"no candidate 'nonesuch': not built in or installed \(optimized, "),
        ("no/such.py", "candidate file no/such.py does not exist"),
    ],
)
def test_unknown_candidates_are_usage_errors(folder, name, message):
    with pytest.raises(UsageError, match=message):
        resolve([name], "auto")


def test_two_candidates_of_one_name_do_not_hide_each_other(folder, capfd):
    from attnproof.harness.verbs.options import VerifyOptions
    from attnproof.harness.verbs.verify import verify

    wrong = "def is_block_tables_empty(block_tables):\n    return block_tables is None\n"
    (folder / "a/mine.py").write_text(wrong, encoding="utf-8")
    options = VerifyOptions(
        ops="is_block_tables_empty",
        candidates=["a/mine.py", "b/mine.py"],
        examples=20,
        steps=0,
        seed=1,
        out=folder / "out",
    )
    assert verify(options) == 1
    line = "is_block_tables_empty [a/mine.py] (wrong-result): the opposite answer"
    assert line in capfd.readouterr().out


def test_installed_candidates_are_found_by_their_entry_point(folder, monkeypatch):
    info = folder / "plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    entries = "[attnproof.candidates]\nwhole = my_plugin\npart = my_plugin:Backend\n"
    entries += "[attnproof.candidates.vllm_0_32]\nlater = my_plugin\n"
    (info / "entry_points.txt").write_text(entries)
    backend = "class Backend:\n    is_block_tables_empty = staticmethod(lambda tables: True)\n"
    (folder / "my_plugin.py").write_text(RIGHT + backend)
    monkeypatch.syspath_prepend(folder)
    whole, part = resolve(["whole", "part"], "auto")
    assert (whole.name, part.name) == ("whole", "part")
    named = [name_of(whole), name_of(part)]
    assert [one.target for one in resolve(named, "auto")] == [whole.target, part.target]
    assert callable(load(whole).build_slot_mapping)
    assert load(part).is_block_tables_empty({1: [2]}) is True
    (later,) = resolve(["later"], "auto")
    assert (later.target, installed_target("later")) == ("my_plugin", "my_plugin")
    declared = [with_interface([later], name)[0].interface for name in ("", "vllm-0.11")]
    assert declared == ["vllm-0.32", "vllm-0.11"]


@pytest.mark.parametrize("path", ["acme/attention/metadata.py", "acme/attention"])
def test_a_module_of_a_package_has_relative_imports(attnproof, tmp_path, path):
    (tmp_path / "src/acme/attention").mkdir(parents=True)
    (tmp_path / "src/acme/__init__.py").write_text("EMPTY = True\n")
    (tmp_path / "src/acme/attention/__init__.py").write_text("from .metadata import *\n")
    text = "from .. import EMPTY\ndef is_block_tables_empty(tables):\n    return not EMPTY\n"
    (tmp_path / "src/acme/attention/metadata.py").write_text(text)
    options = ("--ops=is_block_tables_empty", "--examples=9", "--steps=0", "--out=out")
    done = attnproof("verify", "--candidate", f"src/{path}", *options, cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "(wrong-result): the opposite answer" in done.stdout


SIBLINGS = {
    "reference.py": "NAME = 'their reference'\n",
    "harness/__init__.py": "NAME = 'their harness'\n",
    "optimized/__init__.py": "NAME = 'their optimized'\n",
    "candidate.py": "import harness, optimized, reference\n"
    "NAMES = [module.NAME for module in (reference, harness, optimized)]\n"
    "from attnproof.reference import *\n",
}
LOAD = """
import sys
from attnproof.harness.operations import ALL
from attnproof.harness.running.candidates import resolve
from attnproof.harness.running.loading import load, offered_by
module = load(resolve([sys.argv[1]], "cpu")[0])
print(module.NAMES, offered_by(module, ALL["build_slot_mapping"]).__module__)
"""


@pytest.mark.parametrize("from_the_repository", [True, False])
def test_siblings_named_like_our_folders_are_the_candidates_own(tmp_path, from_the_repository):
    for name, text in SIBLINGS.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(tmp_path / "candidate.py")],
        cwd=Path(__file__).parents[3] if from_the_repository else tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    names = ["their reference", "their harness", "their optimized"]
    assert done.stdout.strip() == f"{names} attnproof.reference.slot_mapping"
