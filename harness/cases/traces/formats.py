"""Formats of traces: the requests that a reader yields and the errors that it raises."""

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
    """Prompt tokens, 0 or more (the scheduler makes it at least 1)."""
    output_tokens: int
    """Generated tokens; 0 in a request that failed (the scheduler makes it at least 1)."""
    prefix_hashes: tuple[int, ...] = ()
    """One id for each `tokens_per_hash` prompt tokens; it stands for them and all before them."""
    tokens_per_hash: int = 0
    """Tokens behind each prefix hash, 0 without hashes."""


class TraceError(ValueError):
    """A trace cannot be used: one line that names the file, the line number and what to do."""

    def __init__(self, path: Path, line: int | None, problem: str, advice: str) -> None:
        where = str(path) if line is None else f"{path}:{line}"
        super().__init__(f"{where}: {problem}; {advice}")
        self.path = path
        self.line = line


class Lines(msgspec.Struct, frozen=True):
    """The text of a trace, line by line; every error of a reader is made here."""

    path: Path
    texts: list[str]
    """Lines without their ends, blank ones at the end of the file dropped."""
    complete: bool
    """Whether the last line ends in a newline."""

    def error(self, line: int | None, problem: str, advice: str) -> TraceError:
        """The error to raise for line number `line` (from 1)."""
        return TraceError(self.path, line, problem, advice)

    def cut(self, line: int) -> TraceError | None:
        """The error for a last line that ends inside a row; None for any other line."""
        if line < len(self.texts) or self.complete:
            return None
        return self.error(
            line, "the file ends inside this row", "copy the whole file again or delete the row"
        )


Row = tuple[float, int, int, tuple[int, ...]]
"""Arrival (seconds, any origin), input tokens, output tokens, prefix hashes."""


class Reader(msgspec.Struct, frozen=True):
    """How one format is read."""

    columns: frozenset[str]
    """Columns or keys that a file of this format has at least, in lower case."""
    rows: Callable[[Lines], Iterator[Row]]
    tokens_per_hash: int = 0
    arrivals: Literal["given", "ticks", "none"] = "given"
    """`ticks`: quantised, to be spread inside each tick; `none`: lengths only."""
