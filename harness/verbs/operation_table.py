"""The table of `attnproof list`, from an index that a test compares with the operations.

Imports neither torch nor the operations. `python -m attnproof.harness.verbs.operation_index`
writes the index again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec
from rich.table import Table

from attnproof.harness.verbs.screen import Screen

INDEX: Final = Path(__file__).with_name("operations.json")
_HEADINGS: Final = ("SPEC", "operation", "what it computes", "interfaces", "oracles")
_PIPED_COLUMNS: Final = 260
"""Width of the table without a terminal: no name is broken over two lines."""


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


def print_index(index: Index) -> None:
    """Print the table of operations and that of oracles."""
    console = make_console()
    console.print(_operations(index.operations))
    console.print()
    console.print(_oracles(index.oracles))


def make_console() -> Screen:
    """Return a console as wide as the terminal, or `_PIPED_COLUMNS` wide without one."""
    console = Screen()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PIPED_COLUMNS
    return console


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
