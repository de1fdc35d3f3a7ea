"""The examples of docs/api.md run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(pytester):
    pytester.makepyfile(backend="from attnproof.reference import build_slot_mapping")
    return pytester


def test_the_function_verifies_a_backend(folder):
    (program,) = [block for block in blocks("python") if "attnproof.verify" in block]
    done = folder.runpython(folder.makepyfile(program=program))
    assert done.ret == 0


def test_the_test_passes_and_is_named_by_its_cases(folder):
    (program,) = [block for block in blocks("python") if "attnproof.check" in block]
    folder.makepyfile(test_slots=program)
    done = folder.runpytest_subprocess("-v", "-p", "no:benchmark")
    assert done.ret == 0
    done.stdout.re_match_lines([r".*test_slots\[drawn-[0-9a-f]{12}\] PASSED"])


def test_the_command_runs(folder):
    (command,) = blocks("shell")
    done = folder.runpytest_subprocess(*shlex.split(command)[1:], "-p", "no:benchmark")
    done.assert_outcomes(passed=1)
