"""Tests of the site's pages that are made from the code, and of its navigation."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from attnproof.harness.operations import ALL
from attnproof.harness.report.catalogue import entry_of

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "tools" / "site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page_of(tool, name: str) -> str:
    entry, sections = entry_of(ALL[name]), tool._sections()
    bugs = tool._bugs_of(name, tool._known_bugs())
    deviations = [one for one in tool._deviations() if name in one["operations"]]
    return "\n".join(tool.operation_page(entry, sections, bugs, deviations))


def test_the_page_of_an_operation_has_all_parts(tool):
    page = page_of(tool, "make_local_attention_virtual_batches")
    assert "- Specification: [section 4](../SPEC.md#4-chunked-local-attention)" in page
    assert "make_local_attention_virtual_batches(attn_chunk_size" in page
    for heading in ("Cases that always run", "Faults", "Known bugs", "Deviations of published"):
        assert f"## {heading}" in page
    assert "- K5: max_model_len not a multiple of the chunk" in page
    assert "E1: max_query_len is a numpy scalar" in page


def test_the_page_of_a_sequence_names_its_functions(tool):
    assert "A sequence of steps through `" in page_of(tool, "layout_sequence")


def test_each_operation_cites_a_section_that_exists(tool):
    sections = tool._sections()
    assert {op.section.partition(".")[0] for op in ALL.values()} <= set(sections)


def test_the_navigation_names_pages_that_exist():
    named = set(re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    made = {"docs/operations/index.md", "samples/index.md"}
    assert named > made
    assert [page for page in named - made if not (ROOT / page).is_file()] == []
