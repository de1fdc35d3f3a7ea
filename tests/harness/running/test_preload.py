"""A task imports an engine once; each worker imports any other candidate anew."""

from __future__ import annotations

import os
import signal
import time

import pytest

from attnproof.harness.running import interrupt, loading
from attnproof.harness.running.errors import INCOMPLETE
from attnproof.harness.running.parent import session
from attnproof.harness.running.processes.launcher import Launcher

MODULE = """
import os, threading
threading.Thread(target=threading.Event().wait).start()  # keeps an interpreter from ending
with open(os.environ["IMPORTS"], "a") as imports:
    imports.write("1")
print("a banner")
os.write(1, b"another banner")
from attnproof.reference import build_slot_mapping, split_decodes_and_prefills
"""


def verify(attnproof, folder):
    """Verify three operations of a module with two of them; return its output and imports."""
    (folder / "loud_engine.py").write_text(MODULE)
    imports = folder / "imports"
    words = ["verify", "--candidate", "loud_engine", "--no-remember", "--examples", "5"]
    words += ["--steps", "0", "--jobs", "1", "--out", "report", "--ops"]
    words += ["split_decodes_and_prefills,split_attn_metadata,build_slot_mapping"]
    done = attnproof(*words, cwd=folder, IMPORTS=str(imports))
    return done.stdout, imports.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_engine", "expected"),
    [
        (True, 1 + 1),  # to look at it, and for both operations
        # To look at it; then for each operation a worker, and fresh ones for repeated cases and
        # after malformed ones.
        (False, 1 + 2 * 3),
    ],
)
def test_number_of_imports_of_a_module(attnproof, monkeypatch, is_engine, expected, tmp_path):
    for module in (loading, session):
        monkeypatch.setattr(module, "imports_once", lambda _candidate: is_engine)
    printed, imports = verify(attnproof, tmp_path)
    assert "PASS        split_decodes_and_prefills" in printed
    assert "PASS        build_slot_mapping" in printed
    assert "no such function" in printed
    assert "banner" not in printed
    assert len(imports) == expected


def test_an_interrupt_while_packages_are_imported(attnproof, monkeypatch, tmp_path):
    def prepare(_launcher, _order):
        os.kill(os.getppid(), signal.SIGINT)
        for _ in range(100):
            time.sleep(0.1)
            interrupt.check()

    monkeypatch.setattr(Launcher, "prepare", prepare)
    words = ["verify", "--ops", "is_block_tables_empty", "--candidate", "optimized"]
    done = attnproof(*words, "--steps", "0", "--no-remember", "--out", "o", cwd=tmp_path)
    assert done.returncode == INCOMPLETE
    assert "interrupted before the first case" in done.stdout
    assert done.stderr == ""
