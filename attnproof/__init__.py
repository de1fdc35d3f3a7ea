"""Verification of attention-metadata backends of LLM-serving engines.

The packages `api`, `reference`, `optimized` and `harness` are links to the folders of those names
at the top of the repository. The names of `__all__` are the Python API, which docs/api.md
describes; each is imported when it is first used, as torch takes seconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnproof.api.checking import check
    from attnproof.api.drawing import cases
    from attnproof.api.verifying import VerificationRun, verify
    from attnproof.harness.model.case import Case
    from attnproof.harness.model.run import Finding
    from attnproof.harness.running.errors import AttnproofError, UsageError

__version__ = "0.1.0"
__all__ = [
    "AttnproofError",
    "Case",
    "Finding",
    "UsageError",
    "VerificationRun",
    "cases",
    "check",
    "verify",
]
_HOMES = {
    "AttnproofError": "attnproof.harness.running.errors",
    "Case": "attnproof.harness.model.case",
    "Finding": "attnproof.harness.model.run",
    "UsageError": "attnproof.harness.running.errors",
    "VerificationRun": "attnproof.api.verifying",
    "cases": "attnproof.api.drawing",
    "check": "attnproof.api.checking",
    "verify": "attnproof.api.verifying",
}


def __getattr__(name: str) -> Any:
    """Import a name of the API at its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Return the names of the module, those not yet imported too."""
    return sorted({*globals(), *__all__})
