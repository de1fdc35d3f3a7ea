"""A candidate: a module that claims to implement operations."""

from __future__ import annotations

from typing import Literal

import msgspec

from attnproof.harness.model.verdict import STRICT, Kind

Lane = Literal["cpu", "interpreter", "cuda"]
"""Device of a candidate's tensors: CPU, CPU with Triton's interpreter, or a GPU."""


REFERENCE = "attnproof.reference"
OPTIMIZED = "attnproof.optimized"
"""Targets of the built-in candidates."""


class Candidate(msgspec.Struct, frozen=True):
    """The source of a candidate's functions, and the device that they are called on."""

    name: str
    target: str
    """Dotted module name, or path of a file or package folder."""
    lane: Lane = "cpu"
    kernels_only: bool = False
    """True if only operations with a device path are verified (the rest runs on the host)."""
    checked: bool = True
    """False for `optimized` without its checks, and for an engine's kernels: they are given
    well-formed cases only."""
    deviations: str = ""
    """Path of the file of its known deviations, "" without one."""
    interface: str = ""
    """Name of the engine interface that it speaks, "" for every one (built-in candidates)."""
    judged: frozenset[Kind] = STRICT
    """Classes of failures that fail it."""

    @property
    def device(self) -> str:
        """Device of its tensors, as torch names it."""
        return "cuda" if self.lane == "cuda" else "cpu"
