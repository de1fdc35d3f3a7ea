"""Types of the trace readers: formats, requests and errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, get_args

import msgspec

TraceFormat = Literal["azure", "mooncake", "qwen-bailian", "burstgpt", "vidur", "vllm-bench"]
FORMATS: tuple[TraceFormat, ...] = get_args(TraceFormat)


class TraceRequest(msgspec.Struct, frozen=True):
    """One request of a trace."""

    arrival_s: float
    """Seconds after the trace's first arrival."""
    input_tokens: int
    """Prompt tokens, 0 or more; the scheduler raises 0 to 1."""
    output_tokens: int
    """Generated tokens, 0 for a failed request; the scheduler raises 0 to 1."""
    prefix_hashes: tuple[int, ...] = ()
    """One id per `tokens_per_hash` prompt tokens, which identifies them and all before them."""
    tokens_per_hash: int = 0
    """Tokens per prefix hash, 0 without hashes."""


class TraceError(ValueError):
    """A trace that cannot be read; the one-line message names file, line and remedy."""

    def __init__(self, path: Path, line: int | None, problem: str, advice: str) -> None:
        where = str(path) if line is None else f"{path}:{line}"
        super().__init__(f"{where}: {problem}; {advice}")
        self.path = path
        self.line = line


class Lines(msgspec.Struct, frozen=True):
    """Lines of a trace; makes the errors of its readers."""

    path: Path
    texts: list[str]
    """Lines without their line ends; blank lines at the end of the file are dropped."""
    complete: bool
    """True if the last line ends in a newline."""

    def error(self, line: int | None, problem: str, advice: str) -> TraceError:
        """Make the error for line number `line`, counted from 1."""
        return TraceError(self.path, line, problem, advice)

    def cut(self, line: int) -> TraceError | None:
        """Make the error for a last line without its end; None for any other line."""
        if line < len(self.texts) or self.complete:
            return None
        return self.error(
            line, "the file ends inside this row", "copy the whole file again or delete the row"
        )


Row = tuple[float, int, int, tuple[int, ...]]
"""Arrival (seconds, any origin), input tokens, output tokens, prefix hashes."""


class Reader(msgspec.Struct, frozen=True):
    """Reader of one format."""

    columns: frozenset[str]
    """Columns or keys that a file of this format must have, in lower case."""
    rows: Callable[[Lines], Iterator[Row]]
    """Function that yields the rows of a file."""
    tokens_per_hash: int = 0
    """Tokens per prefix hash, 0 without hashes."""
    arrivals: Literal["given", "ticks", "none"] = "given"
    """`ticks`: quantised and to be spread inside each tick; `none`: absent."""
