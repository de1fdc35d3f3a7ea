"""Single modules of a package are imported without the rest of it."""

from __future__ import annotations

import sys

import pytest

from attnproof.harness.adapters import single_modules
from attnproof.harness.adapters.single_modules import load_single, root_of

UTILITY = """
from engine_of_tests.platform import Base, is_gpu, registered
from engine_of_tests.kernels import add

if is_gpu():
    import nonesuch

@registered("name")
class Allocator(Base):
    @registered
    def plus_two(self, value):
        return add(value, 2)
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package whose import fails, with two modules that can be imported."""
    folder = tmp_path / "engine_of_tests"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('no GPU')\n", encoding="utf-8")
    (folder / "utility.py").write_text(UTILITY, encoding="utf-8")
    added = "def add(one, other):\n    return one + other\n"
    (folder / "kernels.py").write_text(added, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return "engine_of_tests"


def test_a_module_and_what_it_needs_are_real(package):
    utility = load_single(f"{package}.utility", [f"{package}.kernels"])
    assert utility.Allocator().plus_two(3) == 5


def test_all_other_names_are_placeholders(package):
    utility = load_single(f"{package}.utility")
    assert not utility.is_gpu()
    assert not utility.add(1, 2)
    assert utility.Allocator.__mro__ == (utility.Allocator, object)


def test_compiled_kernels_are_placeholders(package, monkeypatch, tmp_path):
    kernels = "kernels_of_tests"
    monkeypatch.setitem(single_modules._COMPILED, package, kernels)
    source = f"from {kernels}.flash import merge\n"
    (tmp_path / package / "backend.py").write_text(source, encoding="utf-8")
    assert not load_single(f"{package}.backend").merge(1)
    assert not [name for name in sys.modules if name.startswith(kernels)]


def test_nothing_of_the_package_stays_imported(package, monkeypatch):
    monkeypatch.setitem(sys.modules, f"{package}.kernels", sys)
    load_single(f"{package}.utility")
    assert [name for name in sys.modules if name.startswith(package)] == [f"{package}.kernels"]
    assert sys.modules[f"{package}.kernels"] is sys


def test_the_error_of_a_module_is_raised_and_nothing_stays(package, tmp_path):
    finders = list(sys.meta_path)
    (tmp_path / package / "broken.py").write_text("import nonesuch\n", encoding="utf-8")
    with pytest.raises(ModuleNotFoundError, match="nonesuch"):
        load_single(f"{package}.broken")
    assert sys.meta_path == finders
    assert f"{package}.broken" not in sys.modules


def test_a_missing_module_or_package_is_an_error(package):
    with pytest.raises(FileNotFoundError):
        load_single(f"{package}.absent")
    with pytest.raises(ImportError, match="no package absent_of_tests"):
        root_of("absent_of_tests")
