"""Releases of engines that the adapters have been tried on, and the one that is nearest another.

Imports nothing heavy: the configuration is read with it.
"""

from __future__ import annotations

TRIED = {
    "vllm": (
        "0.10.2",
        "0.11.2",
        "0.12.0",
        "0.15.1",
        "0.20.2",
        "0.24.0",
        "0.28.0",
        "0.31.0",
        "0.32.0",
        "0.33.0",
    ),
    "sglang": ("0.5.10", "0.5.12", "0.5.15", "0.5.17", "0.5.20", "0.5.23"),
    "flashinfer": ("0.5.0", "0.5.3", "0.6.0", "0.6.9", "0.6.18.post1", "0.7.0", "0.7.2.post1"),
}
"""Releases of each package, in order: docs/vllm.md and docs/sglang.md have their results.

The versions of known deviations end at these releases.
"""


def nearest(package: str, version: str) -> str:
    """Return the latest tried release up to `version`, the first one if it is earlier than all.

    A version that is unknown or no version counts as the latest.
    """
    from packaging.version import InvalidVersion, Version  # 30 ms

    tried = TRIED[package]
    try:
        limit = Version(Version(version).public)
    except InvalidVersion:
        return tried[-1]
    return max((tag for tag in tried if Version(tag) <= limit), key=Version, default=tried[0])
