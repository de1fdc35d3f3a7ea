"""The interpreter computes overflow checks only if their assertions are on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
from dataclasses import replace
from attnproof.harness.running.worker.interpreter import skip_discarded_checks
from triton.runtime.interpreter import interpreter_builder as builder
builder.options = replace(builder.options, debug={debug})
skip_discarded_checks()
print(builder.options.sanitize_overflow)
"""


@pytest.mark.parametrize("debug", [False, True])
def test_overflow_checks(debug):
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    program = [sys.executable, "-c", PROGRAM.format(debug=debug)]
    ran = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(debug)
