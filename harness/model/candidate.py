"""A candidate: a module that claims to implement operations."""

from __future__ import annotations

import msgspec

from attnproof.harness.model.verdict import STRICT, Kind

Lane = str
"""Device of a candidate's tensors as torch names it, such as "cpu", "cuda" or "xpu:1", or
"interpreter" for CPU tensors with Triton's interpreter."""


REFERENCE = "attnproof.reference"
OPTIMIZED = "attnproof.optimized"
"""Targets of the built-in candidates."""


def device_type(device: str) -> str:
    """Return the device's name without its number: "cuda" for "cuda:1"."""
    return device.partition(":")[0]


class NotProvidedError(AttributeError):
    """A use of what only an installed engine has: no verdict on the candidate follows from it."""


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
    deviations: tuple[str, ...] = ()
    """Files of its known deviations, and shipped lists such as "vllm:0.11"."""
    interface: str = ""
    """Name of the engine interface that it speaks, "" for every one (built-in candidates), and
    until a worker has found that of a candidate which declares none."""
    interface_reason: str = ""
    """Why it is that interface."""
    declared: bool = True
    """False if the interface follows from the classes that the candidate names."""
    stub: str = ""
    """Engine whose stub it imports, "" for none."""
    interpreted: frozenset[str] = frozenset()
    """Operations whose functions launch Triton: they are judged in its interpreter."""
    judged: frozenset[Kind] = STRICT
    """Classes of failures that fail it."""

    @property
    def device(self) -> str:
        """Device of its tensors, as torch names it."""
        return "cpu" if self.lane == "interpreter" else self.lane

    def judging(self, operation: str) -> Candidate:
        """Return the candidate in the lane in which the operation is judged."""
        if operation not in self.interpreted:
            return self
        return msgspec.structs.replace(self, lane="interpreter")
