"""The verdict of the oracles on one candidate and one case."""

from __future__ import annotations

from typing import Any

import msgspec

from attnproof.harness.model.place import Place

PROCESS = "process"
"""The oracle of crashes, hangs and output to stdout."""
ERRORS = "errors"
"""The oracle of raised errors: on good input any error fails it."""
CONSUMER = "consumer"
"""The oracle whose failures follow from any other mistake in the same case."""
WITHOUT_REFERENCE = ("invariants", CONSUMER)
"""Oracles that do not use the reference, which may have the same mistake."""
ORACLES = (
    PROCESS,
    ERRORS,
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
    """One violation of an oracle's rule."""

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
        """Root cause: equal for two failures of one operation by the same bug."""
        return (self.oracle, self.field)

    @property
    def group(self) -> str:
        """The field, or the name of its group of fields that depend on each other."""
        if self.oracle == CONSUMER:
            return CONSUMER
        name = self.field.rsplit(".", 1)[-1]
        return _GROUPS.get(name, name or self.oracle)


class Verdict(msgspec.Struct, frozen=True):
    """Failures (none if the case passed), checks per oracle in the order of ORACLES, a digest."""

    failures: tuple[Failure, ...]
    checks: tuple[int, ...]
    digest: str = ""
    """Hash of the candidate's whole result, "" unless requested."""


class Explanation(msgspec.Struct, frozen=True):
    """All output fields of one case, for the report."""

    outputs: list[dict[str, Any]]
    log: str
    steps: list[tuple[str, str]] = []
    """Steps of a sequence: each in words and as source."""
    snippet: str = ""
    """Program of a sequence that reproduces the failure."""
