"""Readers of CSV traces: Azure, BurstGPT, vidur. Their cells hold no quotes or commas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial

from attnproof.harness.cases.traces.formats import Lines, Reader, Row, TraceFormat


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError(text)
    return value


def _timestamp(text: str) -> float:
    """Convert a timestamp such as 2023-11-16 18:15:46.6805900 to seconds, with all its digits."""
    whole, _, fraction = text.partition(".")
    # The time zone does not matter: only differences of timestamps are used.
    moment = datetime.fromisoformat(whole + "+00:00")
    if fraction and not (fraction.isascii() and fraction.isdigit()):
        raise ValueError(text)
    return moment.timestamp() + float(f"0.{fraction or 0}")


def _count(text: str) -> int:
    # int() would also accept "1_0" and " 1".
    if not (text.isascii() and text.isdigit()):
        raise ValueError(text)
    return int(text)


def _fields(lines: Lines, wanted: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and wanted columns of every row, skipping blank lines."""
    header = [name.strip().lower() for name in lines.texts[0].split(",")]
    missing = [name for name in wanted if name and name not in header]
    if missing:
        raise lines.error(
            1, f"no column {', '.join(missing)}", "add the header line or choose another format"
        )
    places = [header.index(name) for name in wanted if name]
    for number, text in enumerate(lines.texts[1:], start=2):
        if not text:
            continue
        cells = text.split(",")
        if len(cells) != len(header):
            raise lines.cut(number) or lines.error(
                number,
                f"{len(cells)} columns where the header has {len(header)}",
                "repair or delete the row",
            )
        yield number, [cells[place].strip() for place in places]


def _rows(
    lines: Lines, arrival: str, when: Callable[[str], float], prompt: str, output: str
) -> Iterator[Row]:
    names = (arrival, prompt, output)
    parts: tuple[Callable[[str], float], ...] = (when, _count, _count)
    kinds = ("a time", "a whole number of tokens, 0 or more", "a whole number of tokens, 0 or more")
    for number, cells in _fields(lines, names):
        if not arrival:
            cells.insert(0, "0")
        values: list[float] = []
        for cell, name, read, kind in zip(cells, names, parts, kinds, strict=True):
            try:
                values.append(read(cell))
            except ValueError as error:
                raise lines.cut(number) or lines.error(
                    number, f"{name} is {cell!r}, not {kind}", "repair or delete the row"
                ) from error
        yield values[0], int(values[1]), int(values[2]), ()


def _reader(arrival: str, when: Callable[[str], float], prompt: str, output: str) -> Reader:
    names = frozenset(name for name in (arrival, prompt, output) if name)
    rows = partial(_rows, arrival=arrival, when=when, prompt=prompt, output=output)
    return Reader(names, rows, arrivals="given" if arrival else "none")


READERS: dict[TraceFormat, Reader] = {
    "azure": _reader("timestamp", _timestamp, "contexttokens", "generatedtokens"),
    "burstgpt": _reader("timestamp", _seconds, "request tokens", "response tokens"),
    "vidur": _reader("", _seconds, "num_prefill_tokens", "num_decode_tokens"),
}
