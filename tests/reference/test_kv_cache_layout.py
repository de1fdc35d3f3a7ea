"""Tests of the layout of KV caches: precedence, errors, and later choices."""

from __future__ import annotations

import pytest

VARIABLE = "VLLM_KV_CACHE_LAYOUT"


@pytest.fixture(autouse=True)
def nothing_set(package, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    package.set_kv_cache_layout(None)
    yield
    package.set_kv_cache_layout(None)


def test_default(package):
    assert package.get_kv_cache_layout() == "NHD"


def test_environment_comes_before_the_default(package, monkeypatch):
    monkeypatch.setenv(VARIABLE, "HND")
    assert package.get_kv_cache_layout() == "HND"
    monkeypatch.delenv(VARIABLE)
    assert package.get_kv_cache_layout() == "NHD"


@pytest.mark.spec("E9: published code caches the first answer for ever")
def test_a_later_choice_takes_effect(package, monkeypatch):
    monkeypatch.setenv(VARIABLE, "NHD")
    assert package.get_kv_cache_layout() == "NHD"
    package.set_kv_cache_layout("HND")
    assert package.get_kv_cache_layout() == "HND"
    package.set_kv_cache_layout(None)
    assert package.get_kv_cache_layout() == "NHD"


def test_both_packages_have_one_layout(package):
    from attnproof import optimized, reference

    package.set_kv_cache_layout("HND")
    assert reference.get_kv_cache_layout() == optimized.get_kv_cache_layout() == "HND"


@pytest.mark.parametrize("layout", ["nhd", "", "NHD ", "HNDN"])
def test_an_unknown_layout_is_an_error_and_changes_nothing(package, monkeypatch, layout):
    package.set_kv_cache_layout("HND")
    with pytest.raises(package.MetadataError, match=r"cache_layout is '.*', expected NHD or HND"):
        package.set_kv_cache_layout(layout)
    assert package.get_kv_cache_layout() == "HND"
    package.set_kv_cache_layout(None)
    monkeypatch.setenv(VARIABLE, layout)
    with pytest.raises(package.MetadataError, match=f"get_kv_cache_layout: {VARIABLE} is '"):
        package.get_kv_cache_layout()


def test_a_malformed_environment_is_ignored_if_a_layout_is_set(package, monkeypatch):
    monkeypatch.setenv(VARIABLE, "nonsense")
    package.set_kv_cache_layout("NHD")
    assert package.get_kv_cache_layout() == "NHD"


@pytest.mark.parametrize("layout", [0, ["NHD"], b"NHD", True])
def test_another_type_is_an_error(package, layout):
    with pytest.raises(TypeError, match=r"cache_layout is .*, expected str or None"):
        package.set_kv_cache_layout(layout)


@pytest.mark.parametrize(
    ("value", "valid"),
    [("NHD", True), ("HND", True), ("nhd", False), ("", False), (None, False), (["NHD"], False)],
)
def test_validity(package, value, valid):
    assert package.is_valid_kv_cache_layout(value) is valid
