"""Engine steps of a recording, whatever its format."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from attnproof.harness.recorder.schema import Manager, ManagerStep

Blocks = Annotated[int, Meta(ge=1, le=2**16)]


class RecordingError(Exception):
    """A recording cannot be read; the message is one line."""


class Build(msgspec.Struct):
    """Metadata of one KV-cache group that the engine made for a builder."""

    block_size: Blocks
    """Tokens per block."""
    cam: dict[str, Any]
    """Fields of the metadata; a tensor is {"t": dtype, "v": values}."""
    spec: str = ""
    """Kind of the group."""
    builder: str = ""


class Called(msgspec.Struct):
    """A call of a function that the engine made."""

    f: str
    """Name of the function."""
    args: list[Any]
    kwargs: dict[str, Any]
    result: Any


class RecordedStep(msgspec.Struct):
    """One engine step."""

    builds: list[Build]
    calls: list[Called] = []
    blocks_per_row: list[list[int]] = []
    """Blocks of each row, by KV-cache group."""
    step: int = 0
    line: int = 0
    """Line or frame of the file, from 1."""
    manager: ManagerStep | None = None
    """Calls of the KV-cache manager in a file that has them."""
    sizes: Manager | None = None
    """Sizes of that manager."""
