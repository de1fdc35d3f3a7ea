"""A slow import is paid once a task, and an operation that is lacking costs none."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

MODULE = """
import os
with open(os.environ["IMPORTS"], "a") as imports:
    imports.write("1")
print("a banner")
os.write(1, b"another banner")
from reference import build_slot_mapping, split_decodes_and_prefills
"""


@pytest.fixture
def verified(tmp_path):
    """Verify three operations of a module that has two of them; what it printed, its imports."""
    (tmp_path / "loud_engine.py").write_text(MODULE)
    imports = tmp_path / "imports"
    words = ["verify", "--candidate", "loud_engine", "--no-remember", "--examples", "5"]
    words += ["--steps", "0", "--jobs", "1", "--ops"]
    words += ["split_decodes_and_prefills,split_attn_metadata,build_slot_mapping"]
    done = subprocess.run(
        [sys.executable, "-m", "harness", *words, "--out", "report"],
        cwd=tmp_path,
        env=os.environ | {"IMPORTS": str(imports), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout, imports.read_text()


def test_a_module_is_imported_when_it_is_looked_at_and_once_for_all_it_offers(verified):
    printed, imports = verified
    assert "PASS        split_decodes_and_prefills" in printed
    assert "PASS        build_slot_mapping" in printed
    assert "no such function" in printed
    assert imports == "11"


def test_what_an_import_prints_does_not_reach_the_user(verified):
    printed, _ = verified
    assert "banner" not in printed
