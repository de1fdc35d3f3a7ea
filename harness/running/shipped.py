"""Lists of known deviations that attnproof ships, by names such as `vllm:0.11`.

Imports nothing heavy: the configuration is read with it.
"""

from __future__ import annotations

import re
from pathlib import Path

from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.releases import TRIED

_RELEASES = TRIED | {"vllm-triton": TRIED["vllm"]}
"""Releases that each list was made on."""
_FOLDER = Path(__file__).parents[1] / "adapters"


def is_shipped_list(name: str) -> bool:
    """True if the text begins as the name of a shipped list, such as `vllm:`, and is no path."""
    return re.fullmatch(rf"(?:{'|'.join(_RELEASES)}):[^/\\]*", name) is not None


def shipped_list(name: str) -> tuple[str, str]:
    """Return the path of a shipped list, and the release whose entries hold (UsageError)."""
    engine, _, version = name.partition(":")
    for release in reversed(_RELEASES[engine]):  # the latest of "0.5"
        if version in (release, ".".join(release.split(".")[:2])):
            return str(_FOLDER / f"{engine.replace('-', '_')}_deviations.toml"), release
    known = ", ".join(shipped_names())
    raise UsageError(f"--deviations {name}: no such list, expected a file or {known}")


def shipped_names() -> list[str]:
    """Return the names of all lists, of an engine's releases the latest first."""
    return list(
        dict.fromkeys(
            f"{name}:{'.'.join(release.split('.')[:2])}"
            for name, releases in _RELEASES.items()
            for release in reversed(releases)
        )
    )
