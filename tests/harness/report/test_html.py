"""index.html: one safe, well-formed, accessible file with the facts of the run."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from itertools import pairwise

import msgspec
import pytest

from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.run import OracleCount
from attnproof.harness.report.page.cards import build_cards
from attnproof.harness.report.page.html import render_html
from attnproof.harness.report.shared.wording import counts_sentence
from tests.harness.report.runs import ORACLES, make_difference, make_finding, make_result, make_run

RUNS = ["passing", "failing", "sequence", "incomplete", "empty", "timed", "slower", "foreign"]
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """A parser that checks nesting and collects ids, links, headings and text."""

    def __init__(self, source):
        super().__init__(convert_charrefs=True)
        self.open, self.ids, self.links, self.headings = [], [], [], []
        self.attributes, self.tags, self.data, self.title = [], [], {}, ""
        self.feed(source)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.handle_startendtag(tag, attributes)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        by_name = dict(attributes)
        assert len(by_name) == len(attributes), f"an attribute twice in {tag}: {attributes}"
        self.tags.append((tag, by_name))
        self.attributes += attributes
        if "id" in by_name:
            self.ids.append(by_name["id"])
        if tag == "a":
            self.links.append(by_name["href"])
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> does not close the last open element"

    def handle_data(self, data):
        inside = self.open[-1] if self.open else ""
        if self.open == ["html", "head", "title"]:
            self.title += data
        self.data[inside] = self.data.get(inside, "") + data

    @property
    def text(self):
        shown = [text for tag, text in self.data.items() if tag not in ("style", "script")]
        return " ".join(" ".join(shown).split())


@pytest.fixture(params=RUNS)
def source(request):
    return render_html(request.getfixturevalue(request.param), ORACLES)


def test_is_well_formed_with_ids_and_links_that_resolve(source):
    page = Page(source)
    assert len(page.ids) == len(set(page.ids))
    for link in page.links:
        assert link.startswith("#"), f"{link} leaves the page"
        assert link[1:] in page.ids, f"{link} leads nowhere"
    for name, value in page.attributes:
        if name in ("aria-labelledby", "aria-describedby"):
            assert value in page.ids
        if value and "url(#" in value:
            assert re.fullmatch(r"url\(#(.+)\)", value)[1] in page.ids


def test_headings_descend_one_step_at_a_time(source):
    headings = Page(source).headings
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(headings))


def test_fetches_nothing_and_styles_nothing_inline(source):
    page = Page(source)
    names = {name for name, _ in page.attributes}
    assert not names & {"src", "srcset", "style", "background", "action", "xlink:href"}
    assert not [name for name in names if name.startswith("on")]
    assert not [tag for tag, _ in page.tags if tag in ("link", "img", "iframe", "object", "base")]
    assert "@import" not in source
    assert not re.search(r"url\((?!#)", source)
    assert "http://" not in source
    assert "https://" not in source


def test_policy_allows_exactly_our_style_and_script(source):
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', source)[1].replace(
        "&#39;", "'"
    )
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", source, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_has_landmarks_language_and_table_scopes(source):
    page = Page(source)
    tags = [tag for tag, _ in page.tags]
    assert dict(page.tags)["html"] == {"lang": "en"}
    assert tags.count("main") == 1
    assert {"header", "nav", "footer"} <= set(tags)
    assert tags.count("table") == tags.count("caption")
    assert all("scope" in attributes for tag, attributes in page.tags if tag == "th")
    for tag, attributes in page.tags:
        if tag == "svg" and attributes.get("aria-hidden") != "true":
            assert attributes["role"] == "img"
            assert {"aria-labelledby", "aria-describedby"} <= set(attributes)


def test_the_page_of_a_pass(passing):
    page = Page(render_html(passing, ORACLES))
    assert page.title == "PASS · attnproof"
    text = page.text
    assert "2 operations judged, all agree: 3,200 checks on 800 cases" in text
    assert "Failures" not in text


def test_a_pass_begins_with_what_was_judged(advised):
    settings = advised.settings | {"depth": "quick; the default draws more"}
    text = Page(render_html(msgspec.structs.replace(advised, settings=settings), ORACLES)).text
    assert "2 operations judged, all agree: 3,200 checks on 800 cases" in text
    assert "Depth quick; the default draws more." in text
    assert "Not offered" in text
    assert "Advice: fails no candidate" in text


def test_the_header_of_a_failure_names_its_operations(failing):
    header = render_html(failing, ORACLES).partition("</header>")[0]
    names = re.findall(r"<a href=\"#/finding/(\w+)\"><code>(\w+)</code>", header)
    first = {finding.operation: finding.id for finding in reversed(failing.findings)}
    assert names == [(first[name], name) for name in ("build_slot_mapping", "split_attn_metadata")]
    assert "3 findings: " in header


def test_each_candidate_has_its_number_of_operations(passing):
    peers = [msgspec.structs.replace(r, candidate="reference") for r in passing.operations[:1]]

    def sentence(*operations):
        return counts_sentence(msgspec.structs.replace(passing, operations=[*operations]))

    both = sentence(*passing.operations, *peers)
    assert both.startswith("2 operations of optimized and 1 of reference judged, all agree: ")
    four = [msgspec.structs.replace(peers[0], candidate=f"c{number}") for number in range(4)]
    assert sentence(*four).startswith("4 pairs of operation and candidate judged, all agree: ")


def test_a_failure_shows_its_cards(failing):
    page = Page(render_html(failing, ORACLES))
    text = page.text
    assert page.title == "FAIL, 3 findings · attnproof"
    for words in (
        "Of 4 operations of optimized, 1 verified, 2 failed and 1 unverified; "
        "4,800 checks on 1,200 cases in 62 s.",
        "Off by one block",
        "12 failed cases",
        "4 requests and 10 query tokens, shrunk from 37 requests and 4,201 query tokens",
        "first difference at [3]: expected 84, got 88; 4 of 14 elements wrong",
        "num_reqs",
        "with uncommitted changes",
        "CUDA: this machine has no GPU.",
        "Every output element is exactly the reference's.",
    ):
        assert words in text, words
    assert "/finding/000000000001" in page.ids
    assert page.links.count("#/finding/000000000001") == 3  # header, matrix, card
    code = page.data["code"]
    assert failing.findings[0].command in code
    assert "@example(\n    Case(" in code


@pytest.mark.parametrize(("kind", "shared"), [("int32 [1, 1] cpu", True), ("Free", False)])
def test_a_mistake_shared_with_the_reference_is_reported(kind, shared):
    finding = make_finding(
        1,
        oracle="consumer",
        field="block_table_tensor",
        diagnosis="sees another request's block",
        outputs=[make_difference("block_table_tensor", [[4]], [[4]], kind)],
    )
    run = make_run("FAIL", [make_result("build_slot_mapping", "FAIL")], findings=[finding])
    text = Page(render_html(run, ORACLES)).text
    assert ("The reference has the same mistake: equality passes" in text) == shared


def test_a_program_of_one_call_is_on_its_card_or_the_reason_why_there_is_none():
    findings = [make_finding(1, snippet="import torch"), make_finding(2, no_snippet="a reason")]
    run = make_run("FAIL", [make_result("build_slot_mapping", "FAIL")], findings=findings)
    page = Page(render_html(run, ORACLES))
    assert "import torch" in page.data["code"]
    assert f"cases/{findings[0].case_id}.py" in page.data["code"]
    assert "No program without attnproof: a reason." in page.text


def test_fields_with_the_same_mistake_are_drawn_once():
    outputs = [make_difference(name, [1, 2], [1, 3]) for name in ("result", "out")]
    outputs.append(make_difference("other", [1, 2], [0, 2]))
    [card] = build_cards([make_finding(outputs=outputs)])
    assert [field.name for field in card.fields] == ["result, out", "other"]


def test_only_oracles_without_a_reference_report_its_mistakes(failing):
    assert "The reference has the same mistake" not in Page(render_html(failing, ORACLES)).text


def test_text_of_candidates_is_never_markup(failing):
    source = render_html(failing, ORACLES)
    page = Page(source)
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert "<b>bold" not in source
    assert "</script><script>alert(1)</script>" in page.text
    assert "no <reference> yet" in page.text
    assert "\x1b" not in source
    assert "\x00" not in source


def test_the_page_of_an_incomplete_run_has_the_reason(incomplete):
    text = Page(render_html(incomplete, ORACLES)).text
    assert "INCOMPLETE" in text
    assert "time ran out before 1 operation was checked" in text
    assert "Incomplete is not a pass" in text
    assert "takes no tensors" in text


def test_an_empty_run_is_no_pass(empty):
    text = Page(render_html(empty, ORACLES)).text
    assert "No operation was checked; the run took 62 s." in text
    assert "no operation was selected" in text


def test_a_failure_without_findings_points_to_the_matrix():
    run = make_run("FAIL", [make_result("a", "FAIL")])
    assert "recorded no finding" in Page(render_html(run, ORACLES)).text


def test_ten_thousand_cases_fit_in_half_a_megabyte():
    many = {f"oracle {i}": OracleCount(checks=10_000) for i in range(10)}
    operations = [
        make_result(f"operation_{i}", candidate=candidate, oracles=many, cases=10_000)
        for i in range(45)
        for candidate in ("optimized", "optimized triton", "vllm")
    ]
    findings = [make_finding(i) for i in range(12)]
    source = render_html(make_run("FAIL", operations, findings=findings), ORACLES)
    assert len(source.encode()) < 500_000


def test_a_flood_of_findings_stays_below_five_megabytes():
    lens = tuple(range(1, 400))
    blocks = tuple(tuple(range(i, i + -(-length // 4))) for i, length in enumerate(lens))
    case = Case("x", Batch(4, lens, (0,) * len(lens), blocks))
    big = list(range(70_000))
    outputs = [make_difference("slot_mapping", big, [*big[:-1], -1], "int64 [70000] cpu")]
    huge = make_finding(0, case=case, outputs=outputs, log="x" * 1_000_000)
    findings = [huge] + [make_finding(i, log="y" * 9_000) for i in range(1, 400)]
    run = make_run("FAIL", [make_result("x", "FAIL")], findings=findings)
    source = render_html(run, ORACLES)
    assert len(source.encode()) < 5_000_000
    page = Page(source)
    assert "Left out to keep this file small" in page.text
    assert "requests 12 to 398 not drawn" in source
