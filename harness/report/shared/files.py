"""Files that are replaced in one step, so that no reader sees half of one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec


def replace_file(path: Path, data: bytes) -> None:
    """Write `data` to a file beside `path`, then rename that file to `path`."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def indented_json(value: Any) -> bytes:
    """Return JSON indented by two columns, ending in a line feed."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
