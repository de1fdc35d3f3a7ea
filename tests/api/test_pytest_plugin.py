"""The pytest plugin: an item an operation, each verdict as pytest reports it."""

from __future__ import annotations

import sys

import pytest

pytest_plugins = ["pytester"]

OPERATIONS = "is_block_tables_empty,build_slot_mapping"
MINE = """
from attnproof.reference import build_slot_mapping
def is_block_tables_empty(block_tables):
    return block_tables is not None
"""
DEVIATIONS = """
[[deviation]]
id = "D1"
title = "answers the opposite"
operations = ["is_block_tables_empty"]
versions = "*"
reference = "docs/SPEC.md"
when = "not fault"
since = 2026-01-01
"""
OPTIONS = ["--attnproof-examples=20", "--attnproof-seed=1", "-p", "no:benchmark"]


@pytest.fixture
def run(pytester):
    """Runs pytest in a folder with a candidate; the finished process."""
    pytester.makepyfile(mine=MINE)

    def run(*options, candidate="mine.py", ops=OPERATIONS):
        chosen = ["--attnproof-candidate", candidate, *OPTIONS]
        chosen += ["--attnproof-ops", ops] if ops else []
        return pytester.runpytest_subprocess(*chosen, *options)

    return run


@pytest.mark.slow
def test_a_finding_fails_its_item_with_the_card_and_the_replay_line(run, pytester):
    done = run("-n", "2", "--junitxml=junit.xml", "-v")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(
        [
            "is_block_tables_empty * (wrong-result): the opposite answer",
            "replay: printf * | attnproof replay - --candidate mine.py",
            "FAILED attnproof::mine::is_block_tables_empty*",
        ]
    )
    assert 'name="is_block_tables_empty"' in (pytester.path / "junit.xml").read_text()
    again = run("--lf")
    again.assert_outcomes(failed=1, deselected=1)


@pytest.mark.slow
def test_known_deviations_are_strict_xfail_and_what_is_not_offered_is_counted(run, pytester):
    (pytester.path / "known.toml").write_text(DEVIATIONS, encoding="utf-8")
    pytester.makepyfile(right="from attnproof.reference import is_block_tables_empty")
    options = ("--attnproof-deviations=known.toml", "-k", "tables_empty or get_mla_dims", "-vrx")
    done = run(*options, "-n1", ops="")
    done.stdout.fnmatch_lines_random(["*D1: answers the opposite*", "*NOT OFFERED (*no such fun*"])
    done.stdout.fnmatch_lines(["*= 1 xfailed, 1 not offered in *"])


@pytest.mark.slow
def test_a_candidate_that_cannot_be_imported_fails_one_item(run, pytester):
    pytester.makepyfile(broken="import nothing_there")
    done = run(candidate="broken.py", ops="")
    counts = done.parseoutcomes()
    assert counts["failed"] == 1
    assert counts["skipped"] > 50
    done.stdout.fnmatch_lines(["candidate broken cannot be imported: *'nothing_there'"])


def test_metadata_builders_are_items(run, pytester):
    pytester.makepyfile(
        built="""
        from attnproof.reference import AttentionMetadataBuilder

        class OwnBuilder(AttentionMetadataBuilder):
            pass
        """
    )
    run("--collect-only", "-q", candidate="built.py", ops="").stdout.fnmatch_lines(
        ["attnproof::built::OwnBuilder"]
    )


@pytest.mark.slow
def test_own_operations_are_items_and_part_of_the_replay_line(run, pytester):
    pytester.makepyfile(
        my_ops="""
        from attnproof.define import NumTokens, operation

        @operation
        def doubled(num_tokens: NumTokens) -> int:
            '''Return twice the tokens.'''
            return 2 * num_tokens
        """,
        wrong="def doubled(num_tokens):\n    return 3 * num_tokens",
    )
    done = run("--attnproof-operations=my_ops.py", candidate="wrong.py", ops="doubled")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["replay: * --candidate wrong.py --operations my_ops.py"])


@pytest.mark.slow
def test_an_operation_that_is_named_and_not_offered_fails(run):
    done = run(ops="get_mla_dims")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["candidate mine offers none of the operations asked for: *"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--attnproof-seed=3"], "--attnproof-seed needs a candidate*"),
        (["--attnproof-candidate=nope.py"], "*candidate file nope.py does not exist"),
        (["--attnproof-candidate=mine.py", "--attnproof-ops=nope"], "*no operation 'nope'*"),
        (["--attnproof-candidate=mine.py", "--attnproof-examples=0"], "*'0', expected a number*"),
    ],
)
def test_a_mistake_is_one_line(pytester, options, message):
    pytester.makepyfile(mine=MINE)
    done = pytester.runpytest_subprocess(*options, "-p", "no:benchmark")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([f"ERROR: {message}"])


def test_a_suite_that_does_not_use_it_imports_nothing(pytester):
    pytester.makepyfile(
        test_one="import sys\ndef test_one():\n    assert 'torch' not in sys.modules\n"
        "    assert 'msgspec' not in sys.modules\n",
        test_two="import pytest\npytest.skip('a whole module', allow_module_level=True)",
    )
    done = pytester.run(sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:hypothesispytest")
    done.assert_outcomes(passed=1, skipped=1)


@pytest.mark.slow
def test_pyproject_gives_what_no_option_gives(run, pytester):
    pytester.makefile(".toml", pyproject='[tool.attnproof]\nops = "build_slot_mapping"\nseed = 3\n')
    run("-v", ops="").assert_outcomes(passed=1)


def test_a_mistake_in_pyproject_is_one_line(run, pytester):
    pytester.makefile(".toml", pyproject='[tool.attnproof]\nop = "build_slot_mapping"\n')
    done = run()
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["ERROR: attnproof: *did you mean ops?*"])
