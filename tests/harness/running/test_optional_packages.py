"""Operations of `optimized` that need an absent package are UNVERIFIED, others are not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.operation import BuiltIn
from attnproof.harness.model.run import Cause
from attnproof.harness.operations import ALL
from attnproof.harness.running import extras
from attnproof.harness.running.parent.environment import describe, package_version
from attnproof.harness.running.parent.plan import find_skip
from attnproof.harness.verbs import doctor

ABSENT = replace(
    ALL["build_slot_mapping"], built_in=BuiltIn(kernels=True, package="no_such_package")
)


@pytest.mark.parametrize("lane", ["cpu", "interpreter"])
def test_a_missing_package_leaves_optimized_unverified(lane):
    candidate = Candidate("optimized", "attnproof.optimized", lane)
    skip = find_skip(ABSENT, candidate)
    assert (skip.verdict, skip.reason.cause) == ("UNVERIFIED", Cause.PACKAGE_ABSENT)
    assert skip.reason.text == "no_such_package is not installed"
    assert find_skip(replace(ABSENT, built_in=BuiltIn(package="torch")), candidate) is None


@pytest.mark.parametrize("target", ["attnproof.reference", "somebody.else", "/a/file.py"])
def test_other_candidates_do_not_need_it(target):
    assert find_skip(ABSENT, Candidate("theirs", target)) is None


def test_doctor_names_what_a_missing_package_leaves_unverified(monkeypatch):
    extra = extras.Extra("none", ("no_such_package",), "a cost")
    monkeypatch.setitem(ALL, ABSENT.name, ABSENT)
    monkeypatch.setattr(doctor, "EXTRAS", {"none": extra})
    monkeypatch.setitem(extras.EXTRAS, "none", extra)
    (line,) = doctor._extras()
    assert line[0] == "note"
    assert line[1].startswith("without no_such_package: a cost (build_slot_mapping); ")


def test_the_environment_says_which_xformers_is_installed():
    assert describe().xformers == package_version("xformers")
