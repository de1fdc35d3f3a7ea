"""Tests that every worked example and erratum of docs/SPEC.md is quoted by a test."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from attnproof import optimized, reference
from attnproof.harness.operations import ALL

ROOT = Path(__file__).parents[2]
SPEC = (ROOT / "docs/SPEC.md").read_text(encoding="utf-8")
SECTIONS = {
    text.partition(".")[0]: text.partition("\n## ")[0]
    for text in re.split(r"^## (?=\d)", SPEC, flags=re.MULTILINE)[1:]
}
IMPLEMENTED = "".join(SECTIONS.values())
WITHOUT_BEHAVIOUR = {
    "AttentionImpl",  # abstract: the backend of section 8 is one
    "CommonAttentionMetadataV32",  # the class of many drawn batches
    "AttentionMetadata",
    "AttentionState",
    "MLAAttentionImpl",
    "AttentionLayer",  # protocols
    "KVSharingFastPrefillMetadata",
    "AttentionCGSupport",  # enums, constants, plain records
    "AttentionType",
    "BatchMetadataBuilder",
    "KVCacheLayoutType",
    "KV_SHARING_FAST_PREFILL_METADATA_FIELDS",
    "MLADims",
    "PAD_SLOT_ID",
    "PerLayerParameters",
    "STR_NOT_IMPL_ENC_DEC_ROCM_HIP",
    "UBatchSlice",
}


@cache
def quotations() -> list[str]:
    """Return the quotations in `@pytest.mark.spec(...)` of the tests in this folder."""
    found = []
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.spec":
                found += [argument.value for argument in node.args]
    return found


def names() -> list[str]:
    """Return the classes, constants and functions that the numbered sections specify."""
    bold = re.findall(r"\*\*(?:V[01] )?`(\w+)", IMPLEMENTED)
    types = re.findall(r"`([A-Z][A-Za-z]+[a-z][A-Za-z]*|[A-Z]+_[A-Z_]+)\b", SECTIONS["1"])
    return sorted({*bold, *types} - {"MetadataError", "TypeError", "ValueError"})


@pytest.mark.parametrize("quotation", quotations())
def test_quotations_occur_in_the_specification(quotation):
    assert quotation in SPEC


@pytest.mark.parametrize(
    "passage",
    [
        IMPLEMENTED[match.start() : match.start() + 80]
        for match in re.finditer(r"\bExample|\bE\d+:", IMPLEMENTED)
    ],
)
def test_every_worked_example_and_erratum_is_quoted_by_a_test(passage):
    # A quotation may be longer than the passage, or shorter.
    assert any(q.startswith(passage) or passage.startswith(q) for q in quotations())


@pytest.mark.parametrize("name", names())
def test_every_name_is_in_both_packages_and_verified(name):
    assert name in reference.__all__
    assert name in optimized.__all__
    parts = {part for op in ALL.values() for part in op.call.names(op.name)}
    assert name in ALL or name in parts or name in WITHOUT_BEHAVIOUR
