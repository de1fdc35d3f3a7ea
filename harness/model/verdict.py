"""What the oracles say about one candidate on one case."""

from __future__ import annotations

from typing import Any

import msgspec

ORACLES = (
    "process",
    "errors",
    "determinism",
    "equality",
    "invariants",
    "purity",
    "padding",
    "red zones",
)
"""Names of the oracles in the order in which they judge; the first failure leads."""


_LENGTHS = ("query_start_loc", "query_start_loc_cpu", "seq_lens", "seq_lens_cpu")


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One broken rule."""

    oracle: str
    field: str
    """The wrong field, "" when the failure has none; several children share `[].name`."""
    diagnosis: str
    message: str
    expected: str = ""
    got: str = ""
    where: str = ""
    """Index of the first wrong element, such as "[2]"."""
    log: str = ""

    @property
    def root(self) -> tuple[str, str]:
        """What makes two failures of one operation the same bug."""
        return (self.oracle, self.field)

    @property
    def group(self) -> str:
        """Fields that follow from each other: one mistake shows in all of a group."""
        name = self.field.rsplit(".", 1)[-1]
        if name in _LENGTHS or name.startswith(("num_", "max_")):
            return "lengths"
        return "result" if name == "out" else name or self.oracle


class Verdict(msgspec.Struct, frozen=True):
    """Failures (none: the case passed), checks per oracle in the order of ORACLES, and a digest."""

    failures: tuple[Failure, ...]
    checks: tuple[int, ...]
    digest: str = ""
    """Hash of everything the candidate returned, "" unless asked for."""


class Explanation(msgspec.Struct, frozen=True):
    """All output fields of one case, for a person to look at."""

    outputs: list[dict[str, Any]]
    log: str
