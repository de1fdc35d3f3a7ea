"""The table of `attnproof list`, from an index that a test compares with the operations.

Imports neither torch nor the operations. `python -m attnproof.harness.verbs.operation_index`
writes the index again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import Final

import msgspec
from rich.table import Table

from attnproof.harness.verbs.screen import Screen

INDEX: Final = Path(__file__).with_name("operations.json")
_HEADINGS: Final = ("SPEC", "operation", "what it computes", "interfaces", "oracles")
_NAME_COLUMNS: Final = 36
"""Width of the names in a short table; what belongs to a longer name is on the next line."""
_ALL_COLUMNS: Final = 260
"""Width of the whole table: no name is broken over two lines."""
_LEAST_COLUMNS: Final = 160
"""Least width of a terminal that shows the whole table."""


class Row(msgspec.Struct, frozen=True):
    """One operation."""

    section: str
    """Section of SPEC.md."""
    name: str
    summary: str
    interfaces: str
    """Engines that have the operation."""
    oracles: str
    """Letters of the oracles that apply."""
    offers: dict[str, str]
    """Kind of implementation that each candidate offers, such as "kernels", by its name."""


class OracleRow(msgspec.Struct, frozen=True):
    """One oracle: its letter, name and contract."""

    letter: str
    name: str
    contract: str


class Index(msgspec.Struct, frozen=True):
    """All operations, with the offers of the built-in candidates, and the oracles."""

    operations: list[Row]
    oracles: list[OracleRow]


def read_index() -> Index:
    """Return the index that comes with the package."""
    return msgspec.json.decode(INDEX.read_bytes(), type=Index)


def print_index(index: Index, *, wide: bool = False, chosen: bool = False) -> None:
    """Print the table of operations and that of oracles, or a short table.

    A wide terminal has the whole table, `wide` one without a terminal too, where a short one has a
    line for each operation. A short one shows what candidates offer only if the user has `chosen`
    them.
    """
    console = make_console()
    if wide:
        console.width = _ALL_COLUMNS
    if console.width < _LEAST_COLUMNS or not (wide or console.is_terminal):
        for line in _short_lines(index.operations, console.width, chosen=chosen):
            console.print_line(line)
        return
    console.print(_operations(index.operations))
    console.print()
    console.print(_oracles(index.oracles))


def make_console() -> Screen:
    """Return a console as wide as the terminal, or `_ALL_COLUMNS` wide without one."""
    console = Screen()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _ALL_COLUMNS
    return console


def _short_lines(rows: list[Row], columns: int, *, chosen: bool) -> Iterator[str]:
    """Yield lines of section, name and what it computes, or what the chosen candidates offer."""
    longest = max(len(row.name) for row in rows)
    width = longest if columns >= _LEAST_COLUMNS else _NAME_COLUMNS
    head = f"{_HEADINGS[0]:<4}  {_HEADINGS[1]:<{width}}  "
    yield f"{head}{'offers' if chosen else _HEADINGS[2]}"
    for row in rows:
        offers = ", ".join(f"{name}: {word}" for name, word in row.offers.items())
        name = f"{row.section:<4}  {row.name:<{width}}  "
        if len(name) > len(head):
            yield name.rstrip()
            name = ""
        for line in wrap(offers if chosen else row.summary, max(20, columns - len(head))):
            yield f"{name:<{len(head)}}{line}"
            name = ""
    yield ""
    yield "`attnproof list NAME`: signature, oracles, candidates that offer it"
    yield "`attnproof list --wide`: a table with interfaces, oracles and offers"


def _operations(rows: list[Row]) -> Table:
    table = Table(title="Operations", title_justify="left", box=None, pad_edge=False)
    for heading in (*_HEADINGS, *rows[0].offers):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(
            *(row.section, row.name, row.summary, row.interfaces, row.oracles),
            *row.offers.values(),
        )
    table.caption = (
        "interfaces: engines that have the operation; oracles: letters of the oracles that "
        "apply, see below; shared: one implementation for both packages; host only: no kernel "
        "to verify."
    )
    table.caption_justify = "left"
    return table


def _oracles(rows: list[OracleRow]) -> Table:
    table = Table(title="Oracles", title_justify="left", box=None, pad_edge=False)
    for heading in ("", "oracle", "contract"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(row.letter, row.name, row.contract)
    return table
