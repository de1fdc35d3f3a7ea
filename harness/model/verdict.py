"""The verdict of the oracles on one candidate and one case."""

from __future__ import annotations

from typing import Any

import msgspec

from attnproof.harness.backports import StrEnum
from attnproof.harness.model.place import Place

PROCESS = "process"
"""The oracle of crashes, hangs and output to stdout."""
ERRORS = "errors"
"""The oracle of raised errors: on good input any error fails it."""
CONSUMER = "consumer"
"""The oracle whose failures follow from any other mistake in the same case."""
WITHOUT_REFERENCE = ("invariants", CONSUMER)
"""Oracles that do not use the reference, which may have the same mistake."""


class Kind(StrEnum):
    """Classes of findings, the worst first."""

    WRONG_RESULT = "wrong-result"
    """A value, slot, row or length that a kernel would use is wrong."""
    UNSAFE = "unsafe"
    """A crash, a hang, a write outside, a changed input, stale data, shared memory."""
    CONTRACT = "contract"
    """Finding that no batch of an engine shows, such as malformed input that is not refused."""
    TYPE = "type"
    """The right value in another type: a numpy scalar, another dtype, another class."""


ENGINE = frozenset((Kind.WRONG_RESULT, Kind.UNSAFE))
"""Classes that fail a candidate under the engine contract; the strict contract has all."""
STRICT = frozenset(Kind)
_KINDS = {
    PROCESS: Kind.UNSAFE,
    ERRORS: Kind.UNSAFE,
    "determinism": Kind.UNSAFE,
    "equality": Kind.WRONG_RESULT,
    "sequences": Kind.WRONG_RESULT,
    "invariants": Kind.WRONG_RESULT,
    CONSUMER: Kind.WRONG_RESULT,
    "purity": Kind.UNSAFE,
    "padding": Kind.UNSAFE,
    "red zones": Kind.UNSAFE,
    "cost": Kind.CONTRACT,
}
"""Class of an oracle's failures on input that an engine makes."""
LOST = "lost field"
"""Diagnosis of an output that is not set."""
SHARES = "shares memory with an input"
"""Diagnosis of an output in the memory of an input."""
COPIES = "a copy of an input, not its memory"
"""Diagnosis of an output that must be in the memory of an input."""
OVERFLOW = "32-bit overflow"
"""Diagnosis of integers that are reduced to 32 bits."""
ORACLES = tuple(_KINDS)
"""Names of the oracles in the order in which they judge; the first failure leads."""


_LENGTHS = (
    "query_start_loc",
    "query_start_loc_cpu",
    "seq_lens",
    "seq_lens_cpu",
    "num_reqs",
    "num_actual_tokens",
)
_COUNTS = ("num_decodes", "num_prefills", "num_decode_tokens", "num_prefill_tokens")
_GROUPS = {
    **dict.fromkeys(_LENGTHS, "lengths"),
    **dict.fromkeys(_COUNTS, "counts"),
    "max_query_len": "bounds",
    "max_seq_len": "bounds",
    "seq_lens_cpu_upper_bound": "bounds",
    "out": "result",
}


def cause_of(root: tuple[str, str, str]) -> str:
    """Return a root cause as text that is equal in each run: oracle, place and class.

    The class contract is left out, as any failure has it on a case that no engine makes.
    """
    kind, oracle, place = root
    kind = _KINDS[oracle] if kind == Kind.CONTRACT else kind
    return f"{oracle}/{place or oracle} ({kind})"


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
    other_kind: Kind | None = None
    """Class of the failure if it is not that of the oracle."""
    fits: tuple[str, ...] | None = None
    """Known mistakes that each explain every wrong element, the most specific first; None if the
    diagnosis is no guess."""
    about: str = ""
    """The request or token of the first wrong element in words, "" if unknown."""

    @property
    def kind(self) -> Kind:
        """Class of the failure."""
        return self.other_kind or _KINDS[self.oracle]

    @property
    def where(self) -> str:
        """Place and index in words, such as `[1].seq_lens[2]`; "" without a place."""
        if self.place is None:
            return ""
        return f"{self.place}{'' if self.index is None else list(self.index)}"

    @property
    def root(self) -> tuple[str, str, str]:
        """Root cause: equal for two failures of one operation by the same bug."""
        place = self.field
        if self.diagnosis in (LOST, SHARES, COPIES):  # what is done to one field is done to others
            place = self.diagnosis
        elif self.diagnosis == OVERFLOW and self.fits is None:  # a fact: every wrong element
            place = f"{place} {OVERFLOW}"
        elif place.endswith("raises"):  # in a sequence: errors of two types are two mistakes
            place = f"{place} {self.got}"
        return (self.kind, self.oracle, place)

    def follows_from(self, root: tuple[str, str, str]) -> bool:
        """True if it is a failure by this root cause, perhaps of a class that matters less."""
        kinds = list(Kind)
        same = root[1:] == self.root[1:]
        return same and kinds.index(Kind(root[0])) <= kinds.index(self.kind)

    @property
    def group(self) -> str:
        """The field, or the name of its group of fields that depend on each other."""
        if self.oracle == CONSUMER:
            return CONSUMER
        name = self.field.rsplit(".", 1)[-1]
        group = _GROUPS.get(name, name or self.oracle)
        # A changed input or a stray write says nothing about the value of a field.
        return f"{self.oracle} {group}" if self.oracle in ("purity", "red zones") else group


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
    """Program that reproduces the failure: the steps of a sequence, or one call with the expected
    values, which needs torch and the candidate's module alone."""
    no_snippet: str = ""
    """Why there is no program, "" if there is one."""
    arguments: list[str] = []
    """A line on each argument of a call: its value, or dtype, shape, device and stride."""
