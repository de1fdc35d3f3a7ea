"""Reading of LLM-serving traces of any supported format as a list of requests."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np

from attnproof.harness.cases.traces import csv_formats, json_formats
from attnproof.harness.cases.traces.formats import (
    FORMATS,
    Lines,
    Reader,
    Row,
    TraceError,
    TraceFormat,
    TraceRequest,
)
from attnproof.harness.model.files import read_regular

DEFAULT_RATE = 2.0
"""Requests per second of a trace without arrivals."""
_READERS: dict[TraceFormat, Reader] = {**csv_formats.READERS, **json_formats.READERS}


def read_trace(
    path: str | Path,
    *,
    format: TraceFormat | None = None,  # noqa: A002  (the documented name)
    rate: float = DEFAULT_RATE,
    seed: int = 0,
) -> list[TraceRequest]:
    """Read the requests of a trace in order of arrival, the first at 0 s; raise TraceError.

    The format is detected from the content unless it is given. Formats without arrivals get
    those of a Poisson process with `rate` requests per second, drawn with `seed`; with
    `rate=math.inf` all requests arrive at once.
    """
    lines = _lines(Path(path))
    name = format or _detect(lines)
    reader = _READERS[name]
    rows = list(reader.rows(lines))
    if not rows:
        raise lines.error(None, "no requests in it", "give a trace with at least one row")
    arrivals = np.array([row[0] for row in rows])
    if reader.arrivals == "none":
        arrivals = poisson_arrivals(len(rows), rate, seed)
    order = np.argsort(arrivals, kind="stable")
    arrivals = arrivals[order] - arrivals[order[0]]
    if reader.arrivals == "ticks":
        arrivals = spread_ticks(arrivals)
    return [
        _request(arrival, rows[index], reader.tokens_per_hash)
        for arrival, index in zip(arrivals.tolist(), order.tolist(), strict=True)
    ]


def detect_format(path: str | Path) -> TraceFormat:
    """Detect the format of a trace from its header or from its first row's keys."""
    return _detect(_lines(Path(path)))


def spread_ticks(arrivals: np.ndarray) -> np.ndarray:
    """Spread sorted, quantised arrivals evenly over their ticks.

    A tick lasts until the next timestamp, at most the median distance of timestamps.
    """
    # Otherwise quantised arrivals would be replayed as bursts that never happened.
    stamps, first, counts = np.unique(arrivals, return_index=True, return_counts=True)
    if len(stamps) < 2:
        return arrivals
    gaps = np.diff(stamps)
    width = np.minimum(np.append(gaps, math.inf), np.median(gaps))
    rank = np.arange(len(arrivals)) - np.repeat(first, counts)
    spread: np.ndarray = arrivals + np.repeat(width / counts, counts) * rank
    return spread


def poisson_arrivals(count: int, rate: float, seed: int) -> np.ndarray:
    """Draw `count` arrivals, in seconds, of a Poisson process with `rate` requests per second."""
    if rate <= 0:
        raise ValueError(f"rate: got {rate}, expected requests per second above 0")
    if math.isinf(rate):
        return np.zeros(count)
    gaps = np.random.default_rng(seed).exponential(1 / rate, count)
    return np.asarray(np.cumsum(gaps))


def _request(arrival: float, row: Row, tokens_per_hash: int) -> TraceRequest:
    _, input_tokens, output_tokens, hashes = row
    return TraceRequest(
        arrival, input_tokens, output_tokens, hashes, tokens_per_hash if hashes else 0
    )


def _lines(path: Path) -> Lines:
    advice = "give the path of a trace"
    try:
        text = read_regular(path).decode("utf-8-sig")
    except OSError as error:
        raise TraceError(path, None, f"cannot be read ({error.strerror})", advice) from error
    except UnicodeDecodeError as error:
        raise TraceError(path, None, "is not UTF-8 text", "unpack it or " + advice) from error
    texts = [line.removesuffix("\r") for line in text.rstrip().split("\n")]
    if texts == [""]:
        raise TraceError(path, None, "is empty", advice + " with at least one row")
    return Lines(path, texts, complete=text.endswith("\n"))


def _detect(lines: Lines) -> TraceFormat:
    head = lines.texts[0]
    names = _json_keys(lines, head) if head.lstrip().startswith("{") else head.split(",")
    columns = {name.strip().lower() for name in names}
    for name, reader in _READERS.items():
        if reader.columns <= columns:
            return name
    raise lines.error(
        1,
        f"unknown trace format (columns: {', '.join(n.strip() for n in names)[:120]})",
        f"expected one of {', '.join(FORMATS)}",
    )


def _json_keys(lines: Lines, head: str) -> list[str]:
    try:
        return list(msgspec.json.decode(head, type=dict[str, object]))
    except (msgspec.DecodeError, RecursionError) as error:
        raise lines.cut(1) or lines.error(1, "is not JSON", "give one object a line") from error
