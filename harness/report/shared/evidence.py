"""Evidence in words: on which kinds of input a finding shows."""

from __future__ import annotations

from collections import Counter

from attnproof.harness.model.run import Finding
from attnproof.harness.report.shared.wording import many

_NAMES = {
    "fuzz": "drawn case",
    "boundary": "edge case",
    "trace": "step of the traces",
    "recorded": "recorded batch",
    "corpus": "case of the corpus",
}
_PLURALS = {
    "trace": "steps of the traces",
    "recorded": "recorded batches",
    "corpus": "cases of the corpus",
}


def evidence(finding: Finding) -> str:
    """Return the counts in words, such as "12 of 200 drawn cases, none of 50 steps"."""
    parts = []
    for origin, counts in finding.evidence.items():
        name = _NAMES.get(origin, origin)
        plural = _PLURALS.get(origin, f"{name}s")
        cases = f"{counts.cases:,} {name if counts.cases == 1 else plural}"
        parts.append(f"{counts.shown or 'none'} of {cases}")
    return ", ".join(parts) or many(finding.failed_cases, "case")


def advice_counts(advice: list[Finding]) -> str:
    """Return the number of findings of each class, such as "3 contract, 1 type"."""
    counts = Counter(finding.kind for finding in advice)
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
