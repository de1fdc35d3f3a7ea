"""The packages that attnproof runs without: what each one is for, and how to install it.

The one place of install hints; pyproject.toml declares the extras.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple

from attnproof.harness.model.candidate import OPTIMIZED, Candidate


class Extra(NamedTuple):
    """An extra of the distribution."""

    name: str
    packages: tuple[str, ...]
    """Modules that it installs."""
    cost: str
    """Candidates and operations that are not run without it."""


EXTRAS = {
    extra.name: extra
    for extra in (
        Extra(
            "optimized",
            ("numba", "triton"),
            "the candidates optimized, optimized-unchecked (numba) and optimized-triton (Triton) "
            "are not run",
        ),
        Extra("campaign", ("ray",), "`attnproof campaign` does not run"),
        Extra(
            "record",
            ("zstandard",),
            "`attnproof record` cannot write recordings, and `verify --recorded` reads those of "
            "JSON only",
        ),
        Extra("xformers", ("xformers",), "the operations of optimized that use it stay unverified"),
    )
}


def install_hint(package: str) -> str:
    """Return the command that installs the package, "" for one of no extra."""
    for extra in EXTRAS.values():
        if package in extra.packages:
            return f'pip install "attnproof[{extra.name}]"'
    return ""


def missing(*packages: str) -> list[str]:
    """Return those of the packages that are not installed."""
    return [package for package in packages if find_spec(package) is None]


def required_by(candidate: Candidate) -> tuple[str, ...]:
    """Return the packages without which no function of a built-in candidate runs."""
    if candidate.target != OPTIMIZED:
        return ()
    return EXTRAS["optimized"].packages if candidate.lane != "cpu" else ("numba",)


def absence(candidate: Candidate) -> str:
    """Return why the candidate cannot run on this machine and what to install, "" if it can."""
    absent = missing(*required_by(candidate))
    if not absent:
        return ""
    verb = "are" if len(absent) > 1 else "is"
    return (
        f"candidate {candidate.name}: {' and '.join(absent)} {verb} not installed: "
        f"{install_hint(absent[0])}"
    )
