"""What the oracles say about one candidate on one case."""

from __future__ import annotations

from typing import Any

import msgspec

from attnproof.harness.model.place import Place

CONSUMER = "consumer"
"""The oracle whose failures follow from any other mistake in the same case."""
WITHOUT_REFERENCE = ("invariants", CONSUMER)
"""Oracles that do not look at the reference: it may have the mistake too."""
ORACLES = (
    "process",
    "errors",
    "determinism",
    "equality",
    "sequences",
    "invariants",
    CONSUMER,
    "purity",
    "padding",
    "red zones",
    "cost",
)
"""Names of the oracles in the order in which they judge; the first failure leads."""


_LENGTHS = (
    "query_start_loc",
    "query_start_loc_cpu",
    "seq_lens",
    "seq_lens_cpu",
    "num_computed_tokens_cpu",
    "num_reqs",
    "num_actual_tokens",
)
_COUNTS = ("num_decodes", "num_prefills", "num_decode_tokens", "num_prefill_tokens")
_GROUPS = {
    **dict.fromkeys(_LENGTHS, "lengths"),
    **dict.fromkeys(_COUNTS, "counts"),
    "max_query_len": "bounds",
    "max_seq_len": "bounds",
    "out": "result",
}


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One broken rule."""

    oracle: str
    field: str
    """Root of the wrong place, "" without one: children and steps share `[].name`."""
    diagnosis: str
    message: str
    expected: str = ""
    got: str = ""
    place: Place | None = None
    """Place of the first wrong output, None without one."""
    index: tuple[int, ...] | None = None
    """Index of its first wrong element, None if no single element is wrong."""
    log: str = ""

    @property
    def where(self) -> str:
        """Place and index in words, such as `[1].seq_lens[2]`; "" without a place."""
        if self.place is None:
            return ""
        return f"{self.place}{'' if self.index is None else list(self.index)}"

    @property
    def root(self) -> tuple[str, str]:
        """What makes two failures of one operation the same bug."""
        return (self.oracle, self.field)

    @property
    def group(self) -> str:
        """The field, or the name of several that follow from each other."""
        if self.oracle == CONSUMER:
            return CONSUMER
        name = self.field.rsplit(".", 1)[-1]
        return _GROUPS.get(name, name or self.oracle)


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
    steps: list[tuple[str, str]] = []
    """Of a sequence: each step in words and as source."""
    snippet: str = ""
    """Of a sequence: the program that shows what went wrong."""
