"""Tests that each diagnosis has an entry in the catalogue, on its page and on the cards."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from attnproof.harness.backports import tomllib
from attnproof.harness.documents import is_published, page_address
from attnproof.harness.report.shared import diagnoses
from attnproof.harness.strength.catalogue import all_mutations

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("diagnoses", ROOT / "tools" / "diagnoses.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sources = list(module.diagnoses())
    module.diagnoses = lambda: sources  # the sources are read once: it takes four seconds
    return module


def test_each_diagnosis_of_the_code_has_an_entry(tool):
    assert [(diagnosis.place, diagnosis.text) for diagnosis in tool.without_entry()] == []


def test_diagnoses_of_every_kind_are_found_in_the_code(tool):
    texts = {diagnosis.text for diagnosis in tool.diagnoses()}
    assert texts >= {
        "32-bit overflow",  # a constant of another module
        "raises * on good input",  # with a part that is known at run time
        "sees too few keys",  # of the consumer
        "error does not name the field",
        "does not rise from 0",  # of an invariant
        "crashes",  # of a process
        "writes to standard output",
        "window counted without the query's own key",  # an operation's own
        "input modified",
    }


def test_each_entry_describes_a_diagnosis_of_the_code(tool):
    used = {
        diagnoses.entry_of(diagnosis.text, diagnosis.oracle).id for diagnosis in tool.diagnoses()
    }
    assert used == {entry.id for entry in diagnoses.ENTRIES}


def test_a_new_diagnosis_would_be_missed():
    assert diagnoses.entry_of("turned by a quarter") is None


def test_each_diagnosis_of_a_planted_bug_has_an_entry():
    """A planted bug names the start of its diagnoses; a name of a field fits any diagnosis."""
    starts = {
        text for mutation in all_mutations() for text in mutation.diagnoses if " " in text.strip()
    }
    missing = [
        text
        for text in starts
        if diagnoses.entry_of(text.strip(), "invariants") is None
        and diagnoses.entry_of(f"{text.strip()} it", "invariants") is None
    ]
    assert len(starts) > 50
    assert missing == []


def test_known_deviations_name_diagnoses_of_the_catalogue(tool):
    for path in (ROOT / "harness" / "adapters").glob("*.toml"):
        for deviation in tomllib.loads(path.read_text(encoding="utf-8")).get("deviation", []):
            for text in deviation.get("diagnoses", []):
                assert diagnoses.entry_of(text, "invariants") is not None, text


def test_the_page_is_that_of_the_entries(tool):
    assert tool.PAGE.read_text(encoding="utf-8") == tool.page(), "run tools/diagnoses.py --write"


@pytest.mark.parametrize(
    ("diagnosis", "oracle", "expected"),
    [
        ("depends on stale entries (off by one token)", "padding", "stale-entry"),
        ("raises IndexError on good input", "errors", "raises"),
        ("wrong rejected token", "equality", "drafts"),
        ("seq_lens too large", "equality", "values"),
        ("does not answer within 20 s", "process", "process"),
        ("is not the number of rows", "invariants", "rule"),
        ("is not the number of rows", "equality", None),
    ],
)
def test_the_first_entry_that_fits_is_taken(diagnosis, oracle, expected):
    entry = diagnoses.entry_of(diagnosis, oracle)
    assert (entry and entry.id) == expected


def test_the_address_of_the_documents_can_be_set(monkeypatch):
    assert page_address("diagnoses", "tile") == "docs/diagnoses.md#tile"
    assert not is_published()
    monkeypatch.setenv("ATTNPROOF_DOCS", "https://example.com/{page}.html")
    assert page_address("diagnoses", "tile") == "https://example.com/diagnoses.html#tile"
    assert is_published()
