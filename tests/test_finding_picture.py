"""Tests that the README's picture is the card of a real finding."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tool():
    path = ROOT / "tools" / "finding_picture.py"
    spec = importlib.util.spec_from_file_location("finding_picture", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_is_an_image_without_variables(tool):
    text = tool.FILE.read_text(encoding="utf-8")
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(" not in text
    assert "Computed tokens of a continued request not advanced" in text
    assert "attnproof replay reports/latest/cases/" in text


@pytest.mark.slow
def test_the_picture_is_that_of_the_report_of_today(tool):
    drawn = tool.draw(tool.card_of(tool.page_of_the_example()))
    assert drawn == tool.FILE.read_text(encoding="utf-8"), "run tools/finding_picture.py"
