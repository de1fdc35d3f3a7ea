"""Tests of the switch of the input checks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnproof import optimized
from attnproof.harness.operations import ALL
from attnproof.harness.running.candidates import resolve
from attnproof.harness.running.loading import faults_for
from attnproof.optimized.checking import checked, checks
from attnproof.reference import MetadataError


def test_checks_are_off_by_default_and_contexts_restore_them():
    with checked(False):
        with checked():
            assert checks.on
            with checked(False):
                assert not checks.on
            assert checks.on
        assert not checks.on


def test_an_error_restores_the_switch():
    with pytest.raises(ZeroDivisionError), checked(False):
        raise ZeroDivisionError
    assert checks.on


def test_decodes_alone_are_only_looked_at_with_checks(build):
    contradictory = replace(build([1, 1], [4, 6]), seq_lens_cpu=None)
    with checked(False):
        assert optimized.split_decodes_and_prefills(contradictory) == (2, 0, 2, 0)
    with pytest.raises(TypeError, match="seq_lens_cpu is NoneType"):
        optimized.split_decodes_and_prefills(contradictory)


def test_lengths_that_a_loop_reads_are_an_error_without_checks_too(build):
    contradictory = replace(build([3, 2], [4, 6]), max_query_len=2)
    with checked(False), pytest.raises(MetadataError, match="max_query_len"):
        optimized.split_decodes_and_prefills(contradictory)


@pytest.mark.parametrize("name", ["split_decodes_and_prefills", "CommonMetadataBuilder"])
def test_only_the_checked_candidate_gets_malformed_cases(name):
    strict, trusting = resolve(["optimized", "optimized-unchecked"], "auto")
    assert faults_for(ALL[name], strict)
    assert not faults_for(ALL[name], trusting)
