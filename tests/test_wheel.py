"""Tests of the content of a wheel: all modules and data files."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("api", "reference", "optimized", "harness")
DOCS = sorted(path.relative_to(ROOT) for path in (ROOT / "docs").glob("*.md"))
FACE = ("__init__.py", "__main__.py", "py.typed")
"""Files of `attnproof/` that are not links."""
DATA = {".j2", ".css", ".js", ".json", ".md", ".typed"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Wheel of the working tree, built offline from a copy."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for path in (*sources(), *DOCS, *map(Path, ("pyproject.toml", "README.md", "LICENSE"))):
        target = source / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / path).read_bytes())
    (source / "attnproof").mkdir()
    for name in FACE:
        (source / "attnproof" / name).write_bytes((ROOT / "attnproof" / name).read_bytes())
    for package in (*PACKAGES, "docs"):
        (source / "attnproof" / package).symlink_to(Path("..") / package)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--no-index", "--no-build-isolation", "--wheel-dir", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("attnproof-*.whl")
    with zipfile.ZipFile(built) as archive:
        yield archive


def sources() -> list[Path]:
    """Return the source files of the wheel, relative to the root."""
    return [
        path.relative_to(ROOT)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.suffix in {".py", *DATA} and "__pycache__" not in path.parts
    ]


def test_the_wheel_contains_every_module_and_data_file_and_nothing_else(wheel):
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    modules = {f"attnproof/{path.as_posix()}" for path in (*sources(), *DOCS)}
    assert inside == modules | {f"attnproof/{name}" for name in FACE}


def test_site_packages_gets_one_folder(wheel):
    tops = {Path(name).parts[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"attnproof"}


def test_messages_name_pages_that_the_wheel_has(wheel, tmp_path):
    wheel.extractall(tmp_path)
    code = "from attnproof.harness.documents import page_address; print(page_address('vllm', 'a'))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    path, _, anchor = done.stdout.strip().partition("#")
    assert (Path(path), anchor) == (tmp_path / "attnproof" / "docs" / "vllm.md", "a")
    assert Path(path).read_bytes() == (ROOT / "docs" / "vllm.md").read_bytes()


def test_the_package_is_marked_as_typed(wheel):
    assert "attnproof/py.typed" in wheel.namelist()


def test_the_wheel_contains_licence_entry_point_and_readme(wheel):
    metadata = {Path(name).name: name for name in wheel.namelist() if ".dist-info/" in name}
    assert wheel.read(metadata["LICENSE"]) == (ROOT / "LICENSE").read_bytes()
    assert b"attnproof = attnproof.__main__:main" in wheel.read(metadata["entry_points.txt"])
    readme = (ROOT / "README.md").read_text(encoding="utf-8").strip()
    assert readme in wheel.read(metadata["METADATA"]).decode().replace("\r\n", "\n")
