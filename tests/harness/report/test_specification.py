"""The specification on the page: sections of what failed, and addresses of what is cited."""

from __future__ import annotations

import msgspec
import pytest

from attnproof.harness.report.page import specification
from attnproof.harness.report.page.html import render_html
from attnproof.harness.report.page.specification import build_specification, link_of
from tests.harness.report.runs import ORACLES, make_deviation, make_result, make_run


@pytest.fixture
def deviating():
    citation = "docs/SPEC.md, rule 0.6 and section 2, E2"
    known = make_deviation("E2", reference=citation, candidate="vllm")
    return make_run("PASS", [make_result("build_slot_mapping")], deviations=[known])


def test_sections_of_findings_and_of_citations_are_there(failing, deviating):
    assert [section.number for section in build_specification(failing)] == ["3", "5"]
    assert [section.number for section in build_specification(deviating)] == ["0", "2", "5"]


def test_a_passing_run_has_none(passing):
    assert build_specification(passing) == []
    assert '<h2 id="specification-title">' not in render_html(passing, ORACLES)


def test_markdown_becomes_html(failing):
    section = build_specification(failing)[0]
    assert section.title == "Micro-batch (ubatch) slicing"
    assert "<strong><code>split_attn_metadata(ubatch_slices, md)</code></strong>" in section.html
    assert "<td><code>q" not in section.html.partition("</table>")[0].partition("<tbody>")[0]
    assert '<b id="/spec/E4">E4:</b>' in section.html
    assert "**" not in section.html.replace("2**", "")


@pytest.mark.parametrize(
    ("citation", "address"),
    [
        ("docs/SPEC.md, section 2, E2", "#/spec/E2"),
        ("docs/SPEC.md, section 2", "#/spec/2"),
        ("rule 0.6", "#/spec/0"),
        ("docs/SPEC.md, section 8, E14", ""),  # not a section of this page
        ("an e-mail of E2000", ""),
        ("see https://example.com/issues/12.", "https://example.com/issues/12"),
        ("javascript:alert(1)", ""),
        ('https://example.com/"onclick="x', "https://example.com/"),
    ],
)
def test_citations_are_links_if_they_lead_somewhere(deviating, citation, address):
    assert link_of(citation, build_specification(deviating)) == address


def test_a_reference_that_has_an_address_is_a_link(deviating):
    [known] = deviating.deviations
    known = msgspec.structs.replace(known, reference="https://example.com/issues/12?a=1&b=2")
    page = render_html(msgspec.structs.replace(deviating, deviations=[known]), ORACLES)
    assert '<a href="https://example.com/issues/12?a=1&amp;b=2">' in page


def test_without_the_text_there_is_no_section(failing, monkeypatch):
    monkeypatch.setattr(specification, "_sections", lambda: ())
    page = render_html(failing, ORACLES)
    assert "<span>Specification, section 5</span>" in page
    assert "/spec/" not in page
