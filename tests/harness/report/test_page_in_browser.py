"""index.html in a real Chromium: no overflow, no violation of axe's rules, filters and folds.

Needs the extra `browser` and an installed Chromium; playwright's own download is not used.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.cases.coverage.features import cells_of
from attnproof.harness.model.case import Case
from attnproof.harness.model.run import DeviationResult, OracleCount
from attnproof.harness.oracles import CONTRACTS
from attnproof.harness.report.page.html import render_html
from tests.harness.report.runs import make_finding, make_result, make_run, make_sequence_finding

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
]
AXE = Path(axe.__file__).with_name("axe.min.js")
RUNS = [
    "passing",
    "advised",
    "ten_findings",
    "deviating",
    "sequence",
    "incomplete",
    "slower",
    "mapped",
    "foreign",
]
SIZES = {"desktop": (1280, 900), "telephone": (390, 844)}
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
SCROLLED = """(selector) => [...document.querySelectorAll(selector)]
    .filter((box) => box.scrollWidth > box.clientWidth)
    .map((box) => `${box.scrollWidth}: ${box.innerText.slice(0, 60)}`)"""
VIOLATIONS = """async () => (await axe.run()).violations.map(
    (rule) => `${rule.id}: ${rule.nodes.map((node) => node.html.slice(0, 200)).join(" ; ")}`
)"""


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        # The tests of a gate run as root in a container, where Chromium's sandbox cannot start.
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def ten_findings():
    names = ["build_slot_mapping", "split_attn_metadata", "get_mla_dims"]
    findings = [
        make_finding(
            number,
            operation=names[number % 3],
            oracle=("equality", "padding")[number % 2],
            diagnosis=f"diagnosis number {number}",
            function=f"{'a_long_folder_name/' * 8}backend.py:{number}",
        )
        for number in range(1, 10)
    ]
    operations = [make_result(name, "FAIL") for name in [*names, "batch_sequence"]]
    operations.append(make_result("absent", "NOT OFFERED", reason="no such function"))
    return make_run("FAIL", operations, findings=[*findings, make_sequence_finding(10)])


@pytest.fixture
def one_operation():
    return make_run("PASS", [make_result("build_slot_mapping")])


@pytest.fixture
def all_oracles():
    """A run of three candidates with checks of every oracle."""
    checked = {name: OracleCount(checks=12_345) for name in CONTRACTS}
    wrong = checked | {"equality": OracleCount(checks=12_345, failed=3)}
    operations = [
        make_result("build_slot_mapping", candidate="optimized-unchecked", oracles=checked),
        make_result("build_slot_mapping", candidate="reference", oracles=checked),
        make_result("build_slot_mapping", "FAIL", candidate="vllm", oracles=wrong),
    ]
    found = make_finding(1, operation="build_slot_mapping", candidate="vllm", oracle="equality")
    return make_run("FAIL", operations, findings=[found])


@pytest.fixture
def mapped():
    """A run with engine steps, one of which no test resembles."""

    def counted(*requests):
        batches = [make_batch([1] * number, [3] * number, 4) for number in requests]
        return {f"{cells_of(Case('op', batch)):x}": 20 for batch in batches}

    features = {"fuzz": counted(1, 2, 40), "boundary": counted(0), "trace": counted(2, 9)}
    other = {"fuzz": counted(1), "recorded": counted(1, 40)}
    operations = [
        make_result("build_slot_mapping", features=features),
        make_result("split_attn_metadata", features=other),
    ]
    return make_run("PASS", operations)


@pytest.fixture
def deviating():
    known = [
        DeviationResult(
            id=f"E{number}",
            title=f"title number {number}",
            reference=f"docs/SPEC.md, section 5, E{number}",
            since="2024-12-03",
            operation="build_slot_mapping",
            candidate=("vllm", "mine")[number % 2],
            version="0.11.2",
            cases=3,
            oracles=("equality", "red zones"),
            shown=make_finding(number),
        )
        for number in range(45, 50)
    ]
    stale = msgspec.structs.replace(known[0], id="E1", cases=0, oracles=(), shown=None)
    oracles = {"equality": OracleCount(checks=400, known=3)}
    operations = [make_result("build_slot_mapping", "DEVIATES", candidate="vllm", oracles=oracles)]
    return make_run("PASS", operations, deviations=[*known, stale])


@pytest.fixture
def open_page(browser, request, tmp_path):
    """Open the page of a run, without a network; the test fails on an error of its script."""
    opened, errors = [], []

    def page_of(name, size="desktop", scheme="light", fragment="", **options):
        width, height = SIZES[size]
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            offline=True,
            **options,
        )
        opened.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text))
        path = tmp_path / f"{name}.html"
        path.write_text(render_html(request.getfixturevalue(name), CONTRACTS), encoding="utf-8")
        page.goto(f"{path.as_uri()}{fragment}")
        return page

    yield page_of
    for context in opened:
        context.close()
    assert errors == []


def cards(page, section="failures"):
    """Return the labels of the cards that are shown."""
    return page.locator(f"#{section} .card:visible .number").all_inner_texts()


def choose(page, name, value):
    page.locator(f"select[name={name}]").select_option(value)


def opened(page):
    """Return the labels of the cards of failures that are unfolded."""
    return page.locator("#failures .card:has(> .fold[open]) .number").all_inner_texts()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", RUNS)
def test_nothing_is_wider_than_the_window(open_page, name, size):
    page = open_page(name, size)
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert page.evaluate(OVERFLOW) == 0


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["slower", "foreign"])
def test_no_table_of_a_benchmark_scrolls(open_page, name, size):
    page = open_page(name, size)
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert page.evaluate(SCROLLED, "#performance .scroll:has(table)") == []


def test_the_matrix_of_all_oracles_does_not_scroll(open_page):
    assert open_page("all_oracles").evaluate(SCROLLED, "#matrix .scroll") == []


@pytest.mark.parametrize(("size", "scheme"), [("desktop", "light"), ("telephone", "dark")])
@pytest.mark.parametrize("name", RUNS)
def test_axe_finds_no_violation(open_page, name, size, scheme):
    # The page's own policy would refuse the script of axe.
    page = open_page(name, size, scheme, bypass_csp=True)
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    assert page.evaluate(VIOLATIONS) == []


def test_the_pass_of_one_operation_is_one_screen(open_page):
    page = open_page("one_operation")
    box = page.locator("#performance").bounding_box()
    assert box["y"] + box["height"] <= 800


def test_cards_after_the_third_are_folded(open_page):
    page = open_page("ten_findings")
    assert opened(page) == ["F1", "F2", "F3"]
    page.get_by_role("button", name="Unfold all").click()
    assert len(opened(page)) == 10
    page.get_by_role("button", name="Fold all", exact=True).click()
    assert opened(page) == []


def test_without_a_script_all_cards_are_open(open_page):
    page = open_page("ten_findings", java_script_enabled=False)
    assert len(opened(page)) == 10
    assert page.locator(".filter, .code button").count() == 0


def test_filters_by_operation_oracle_and_text(open_page):
    page = open_page("ten_findings")
    assert page.locator(".filter select").evaluate_all("all => all.map((one) => one.name)") == [
        "operation",
        "oracle",
    ]  # one candidate and no class: nothing to choose from
    choose(page, "operation", "get_mla_dims")
    assert cards(page) == ["F2", "F5", "F8"]
    choose(page, "oracle", "padding")
    assert cards(page) == ["F5"]
    assert page.locator("#failures .contents li:visible").count() == 1
    assert page.locator(".filter output").inner_text() == "1 of 10 shown"
    page.get_by_role("button", name="Clear").click()
    assert len(cards(page)) == 10
    page.get_by_label("Text", exact=True).fill("NUMBER 7")
    assert cards(page) == ["F7"]


def test_any_data_attribute_can_be_a_filter(open_page):
    page = open_page("deviating")
    choose(page, "candidate", "mine")
    assert cards(page, "deviations") == ["D1", "D3", "D5", "D6"]
    choose(page, "candidate", "")
    choose(page, "oracle", "red zones")  # one of two oracles of each card, not of the stale one
    assert cards(page, "deviations") == ["D1", "D2", "D3", "D4", "D5"]


def test_a_link_to_a_card_unfolds_it_and_clears_the_filter(open_page):
    page = open_page("ten_findings", fragment="#/finding/000000000009")
    assert "F9" in opened(page)
    page.wait_for_function("document.activeElement.id === 'f9-name'")
    choose(page, "operation", "get_mla_dims")
    page.evaluate("location.hash = '#/finding/000000000003'")
    page.wait_for_function("document.activeElement.id === 'f3-name'")
    assert len(cards(page)) == 10


def test_a_citation_opens_the_specification(open_page):
    page = open_page("deviating")
    page.get_by_role("link", name="section 5, E45").first.click()
    erratum = page.locator("[id='/spec/E45']")
    erratum.wait_for(state="visible")
    assert erratum.inner_text() == "E45:"


def test_what_is_not_offered_has_no_row(open_page):
    page = open_page("ten_findings")
    matrix = page.locator("#matrix").inner_text()
    assert "absent" not in matrix
    assert "1" in page.locator("#matrix tfoot tr", has_text="not offered").inner_text()
    assert page.locator("#appendix", has_text="absent · optimized").count() == 1


def test_the_theme_follows_the_system_until_it_is_chosen(open_page):
    page = open_page("passing", scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    button = page.get_by_role("button", name="Theme")
    button.click()
    assert page.evaluate(ground) != dark
    button.click()
    assert page.evaluate(ground) == dark


def test_a_print_shows_what_is_folded(open_page):
    page = open_page("ten_findings")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert len(opened(page)) == 10
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert opened(page) == ["F1", "F2", "F3"]
    assert page.pdf().startswith(b"%PDF")
