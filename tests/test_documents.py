"""Tests that links, files, commands and options in the documents exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from attnproof.harness.cli import app

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/*.md", "tests/*.md", "reports/README.md", "examples/*.md")
    for path in ROOT.glob(pattern)
)
COMMANDS = get_command(app).commands
OPTIONS = {
    option for command in COMMANDS.values() for item in command.params for option in item.opts
}


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_link_targets_exist(page):
    targets = re.findall(r"\]\(([^)#]+)", text(page))
    folder = (ROOT / page).parent
    missing = [t for t in targets if "://" not in t and not (folder / t).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES)
def test_files_in_backquotes_exist(page):
    """Checks paths that start with one of our folders; `<section>` is any section."""
    named = re.findall(
        r"`((?:reference|optimized|harness|tests|examples|docs)/[\w./<>-]*)`", text(page)
    )
    paths = [path.rstrip("/").replace("<section>", "slot_mapping") for path in named]
    folders = (ROOT, (ROOT / page).parent)
    assert [path for path in paths if not any((f / path).exists() for f in folders)] == []


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_options_exist(page):
    lines = re.findall(
        r"attnproof ((?:verify|replay|diff|list|doctor|bench|report)\b[^\n`]*)", text(page)
    )
    for line in lines:
        verb, *rest = line.split()
        assert verb in COMMANDS, line
        unknown = [word for word in rest if word.startswith("--") and word not in OPTIONS]
        assert unknown == [], line


def test_the_readme_fits_on_two_screens():
    assert len(text("README.md").splitlines()) < 100


def test_the_gate_is_a_command_of_the_readme():
    (command,) = re.findall(r"^\((python3 .+)\) 2>&1", text(".ci/run"), re.MULTILINE)
    assert f"\n{command}  " in text("README.md")


def test_every_page_of_docs_is_in_its_index():
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert {page for page in pages if f"]({page})" not in text("docs/README.md")} == set()
