"""Tests of the index that `attnproof list` prints without importing torch."""

from __future__ import annotations

import os
import subprocess
import sys

from attnproof.harness.verbs.operation_index import built_in_index, encoded
from attnproof.harness.verbs.operation_table import INDEX, read_index

HEAVY = ("torch", "numpy", "numba", "triton", "hypothesis")


def test_the_index_is_that_of_the_operations():
    """`python -m attnproof.harness.verbs.operation_index` writes it again."""
    assert INDEX.read_bytes() == encoded(built_in_index())


def test_list_help_and_version_import_nothing_heavy():
    script = (
        "import sys\n"
        "from attnproof.harness.cli import app\n"
        "for words in (['list'], ['--help'], ['--version'], ['verify', '--help']):\n"
        "    app(words, standalone_mode=False)\n"
        f"print('heavy:', [name for name in {HEAVY} if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=os.environ | {"COLUMNS": "260"},
    )
    assert done.stdout.splitlines()[-1] == "heavy: []"
    for row in read_index().operations:
        assert row.name in done.stdout


def test_the_shell_completes_a_verb():
    script = "import sys; sys.argv = ['attnproof']; from attnproof.harness.cli import main; main()"
    environment = {"_ATTNPROOF_COMPLETE": "complete_bash", "COMP_WORDS": "attnproof ver"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | environment | {"COMP_CWORD": "1"},
    )
    assert (done.stdout.split(), done.stderr) == (["verify"], "")
