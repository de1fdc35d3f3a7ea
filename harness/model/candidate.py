"""A candidate: something that claims to implement operations."""

from __future__ import annotations

from typing import Literal

import msgspec

Lane = Literal["cpu", "interpreter", "cuda"]
"""Where its tensors lie: CPU, CPU with Triton's interpreter switched on, or a GPU."""


REFERENCE = "attnproof.reference"
OPTIMIZED = "attnproof.optimized"
"""Targets of the built-in candidates."""


class Candidate(msgspec.Struct, frozen=True):
    """Where a candidate's functions come from and on which tensors they are called."""

    name: str
    target: str
    """Dotted module name, or path of a file or package folder."""
    lane: Lane = "cpu"
    kernels_only: bool = False
    """Whether only operations with a device path are asked of it (the rest runs on the host)."""
    deviations: str = ""
    """Path of the file of its known deviations, "" without one."""

    @property
    def device(self) -> str:
        """Of its tensors, as torch names it."""
        return "cuda" if self.lane == "cuda" else "cpu"
