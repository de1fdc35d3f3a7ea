"""Places in the source of a candidate, as code hosts name them: paths below the repository."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_WORKSPACES = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR", "BUILDKITE_BUILD_CHECKOUT_PATH")
"""Variables in which CI systems name the folder of the checkout."""
_PACKAGES = ("site-packages", "dist-packages")


class SourcePlace(NamedTuple):
    """A line of a file."""

    path: str
    """Relative to the root with forward slashes; to the installed packages if it is in these."""
    line: int
    """Counted from 1."""
    is_inside: bool
    """True if the file is below the root."""


def source_root(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the checkout: of the CI system, else of git, else the current one."""
    for name in _WORKSPACES:
        if folder := environ.get(name):
            return Path(folder).resolve()
    here = Path.cwd()
    return next((each for each in (here, *here.parents) if (each / ".git").exists()), here)


def source_place(function: str, root: Path) -> SourcePlace | None:
    """Return the place of a finding's function, such as "backend.py:12"; None if unknown."""
    name, _, number = function.rpartition(":")
    if not name or not number.isdecimal():
        return None
    path, line = Path(name).resolve(), max(int(number), 1)
    if path.is_relative_to(root):
        return SourcePlace(path.relative_to(root).as_posix(), line, is_inside=True)
    parts = path.parts
    start = max((parts.index(name) + 1 for name in _PACKAGES if name in parts), default=0)
    outside = "/".join(parts[start:]) if start else path.name
    return SourcePlace(outside, line, is_inside=False)
