"""`attnproof.verify` returns a run, prints nothing, and leaves nothing behind."""

from __future__ import annotations

import html
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import attnproof
from attnproof.harness.verbs.options import ReplayOptions
from attnproof.harness.verbs.replay import replay

OPERATION = "is_block_tables_empty"
WRONG = f"def {OPERATION}(block_tables):\n    return block_tables is not None\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Folder with a wrong candidate, and with modules named as folders of the package."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(WRONG, encoding="utf-8")
    (tmp_path / "reference.py").write_text("raise RuntimeError\n", encoding="utf-8")
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").write_text("raise RuntimeError\n", encoding="utf-8")
    return tmp_path


def test_the_import_is_quick_and_loads_no_torch():
    code = "import sys, attnproof; print('torch' in sys.modules, 'msgspec' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_every_name_of_the_api_is_there():
    assert set(attnproof.__all__) <= set(dir(attnproof))
    assert all(getattr(attnproof, name) is not None for name in attnproof.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = attnproof.nothing


@pytest.mark.slow
def test_a_wrong_function_is_a_finding(folder, capfd):
    before = _files(folder)
    run = attnproof.verify("mine.py", ops=[OPERATION], examples=20, steps=0, seed=1)
    assert (run.ok, run.verdict, run.exit_code, run.report) == (False, "FAIL", 1, None)
    (finding,) = run.findings
    assert (finding.operation, finding.candidate, finding.oracle) == (OPERATION, "mine", "equality")
    assert finding.kind == "wrong-result"
    assert finding.diagnosis == "the opposite answer"
    assert '"block_tables":null' in finding.command
    assert finding.command.endswith("| attnproof replay - --candidate mine.py")
    assert finding.diagnosis in run.summary()
    assert "expected   True" in run.card(finding)
    assert run.card(finding).endswith(f"replay: {finding.command}")
    assert [result.verdict for result in run.operations] == ["FAIL"]
    assert [advice.kind for advice in run.advice] == ["contract"]
    assert _files(folder) == before
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_every_text_on_a_finding_says_what_a_kernel_does_wrongly(folder, capfd):
    late = folder / "late.py"
    late.write_text(
        "from attnproof import reference\n\n\ndef build_slot_mapping(*args, **kwargs):\n"
        "    return reference.build_slot_mapping(*args, **kwargs) + 1\n",
        encoding="utf-8",
    )
    run = attnproof.verify(
        "late.py", ops="build_slot_mapping", examples=20, steps=0, seed=1, out="kept"
    )
    finding = next(finding for finding in run.findings if finding.oracle == "equality")
    sentence = finding.kernel.removeprefix("In a kernel: ").removesuffix(".")
    assert " of request 0 is written to slot " in sentence
    page = html.unescape((folder / "kept" / "index.html").read_text(encoding="utf-8"))
    assert all(finding.kernel in text for text in (run.card(finding), run.summary(), page))
    assert f"block_size = {finding.case.batch.block_size}\n" in page
    case = folder / "kept" / finding.case_path
    capfd.readouterr()
    replay(ReplayOptions(case=str(case), candidates=["late.py"]))
    assert f"\nconsumer (wrong-result): {sentence}\n" in capfd.readouterr().out


@pytest.mark.slow
def test_a_module_is_verified_and_a_report_is_kept(folder):
    spec = importlib.util.spec_from_file_location("loaded", folder / "mine.py")
    module = importlib.util.module_from_spec(spec)
    run = attnproof.verify(
        module, ops=OPERATION, contract="strict", out="kept", examples=10, steps=0
    )
    assert run.report == Path("kept")
    assert (folder / "kept" / "index.html").exists()
    assert {finding.kind for finding in run.findings} == {"wrong-result", "contract"}
    assert all("kept/cases/" in finding.command for finding in run.findings)


@pytest.mark.slow
def test_a_mistake_in_the_arguments_is_one_line(folder):
    with pytest.raises(attnproof.UsageError, match=r"^candidate file nope\.py does not exist$"):
        attnproof.verify("nope.py", out="never")
    assert not (folder / "never").exists()


@pytest.mark.parametrize(("target", "ops"), [([], None), ("mine.py", [])])
def test_nothing_to_verify_is_a_mistake(target, ops):
    with pytest.raises(attnproof.UsageError, match=r"name an? "):
        attnproof.verify(target, ops=ops)


def test_a_value_of_another_type_is_a_mistake():
    with pytest.raises(attnproof.UsageError, match=r"^examples: Expected .* got `str`$"):
        attnproof.verify("mine.py", examples="many")


def _files(folder):
    """Files below a folder, without the bytecode that Python itself writes at an import."""
    return sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)
