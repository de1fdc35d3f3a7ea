"""`attnproof list`: the operations, their oracles, and the candidates that offer them."""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from rich.table import Table

from attnproof.harness.model.candidate import OPTIMIZED, Candidate
from attnproof.harness.model.operation import Operation
from attnproof.harness.operations import ALL
from attnproof.harness.oracles import CONTRACTS
from attnproof.harness.report.catalogue import Entry, entry_of, page
from attnproof.harness.running.candidates import resolve
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.task.workers import Worker
from attnproof.harness.running.worker.worker import warm_up
from attnproof.harness.verbs.messages import say
from attnproof.harness.verbs.options import MEMORY_BYTES, CallOptions, ListOptions
from attnproof.harness.verbs.screen import Screen
from attnproof.harness.verbs.selection import pick_operations

_HEADINGS: Final = (
    *("SPEC", "operation", "what it computes"),
    *("interfaces", "oracles", "cases", "faults"),
)
_PIPED_COLUMNS: Final = 260
"""Width of the table without a terminal: no name is broken over two lines."""


def show_operations(options: ListOptions) -> None:
    """Print a table of all operations, or the named ones in full. Raise UsageError."""
    names = options.operations
    entries = [entry_of(operation) for operation in pick_operations(",".join(names))]
    if options.markdown:
        if options.candidates:
            raise UsageError("--markdown lists no candidates: leave out --candidate")
        say(page(entries).removesuffix("\n"))
        return
    candidates = resolve(options.candidates, "auto")
    offers = {candidate.name: _offers(candidate) for candidate in candidates}
    console = _console()
    if names:
        for entry in entries:
            _print_entry(console, entry, offers)
        return
    console.print(_operations(entries, offers))
    console.print()
    console.print(_oracles())


def _console() -> Screen:
    """Return a console as wide as the terminal, or `_PIPED_COLUMNS` wide without one."""
    console = Screen()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PIPED_COLUMNS
    return console


class _Offer(NamedTuple):
    word: str
    reason: str = ""
    """Reason that the candidate gives for an operation it does not offer."""

    def __str__(self) -> str:
        return f"{self.word}: {self.reason}" if self.reason else self.word


def _offers(candidate: Candidate) -> dict[str, _Offer]:
    """Return the candidate's offer of each operation, such as "kernels", by name."""
    warm_up([candidate])
    worker = Worker(candidate, ALL, timeout_s=CallOptions.timeout_s, memory_bytes=MEMORY_BYTES)
    worker.stop()
    offers = {name: _offer(candidate, op, name in worker.offers) for name, op in ALL.items()}
    return offers | {name: _Offer("not offered", why) for name, why in worker.withheld.items()}


def _offer(candidate: Candidate, operation: Operation, offered: bool) -> _Offer:
    if not offered:
        return _Offer("not offered")
    if candidate.kernels_only:
        return _Offer("kernels" if operation.built_in.kernels else "host only")
    shared = operation.built_in.shared and candidate.target == OPTIMIZED
    return _Offer("shared" if shared else "offered")


def _operations(entries: list[Entry], offers: dict[str, dict[str, _Offer]]) -> Table:
    table = Table(title="Operations", title_justify="left", box=None, pad_edge=False)
    for heading in (*_HEADINGS, *offers):
        table.add_column(heading, overflow="fold")
    for entry in entries:
        operation = entry.operation
        table.add_row(
            operation.section,
            operation.name,
            operation.summary,
            entry.engines,
            _letters(entry),
            str(len(entry.boundaries)),
            str(len(operation.inputs.faults)),
            *(offered[operation.name].word for offered in offers.values()),
        )
    table.caption = (
        "interfaces: engines that have the operation; oracles: letters of the oracles that "
        "apply, see below; cases: boundary cases, which always run; faults: ways to malform an "
        "input; shared: one implementation for both packages; host only: no kernel to verify."
    )
    table.caption_justify = "left"
    return table


_LETTERS = dict(zip(CONTRACTS, "PEDQSICUGRO", strict=True))


def _letters(entry: Entry) -> str:
    return "".join(letter if name in entry.oracles else "-" for name, letter in _LETTERS.items())


def _oracles() -> Table:
    table = Table(title="Oracles", title_justify="left", box=None, pad_edge=False)
    for heading in ("", "oracle", "contract"):
        table.add_column(heading, overflow="fold")
    for name, contract in CONTRACTS.items():
        table.add_row(_LETTERS[name], name, contract)
    return table


def _print_entry(console: Screen, entry: Entry, offers: dict[str, dict[str, _Offer]]) -> None:
    """Print signatures, docstrings, oracles, boundaries and faults of one operation."""
    operation = entry.operation
    console.print(f"{operation.name}, SPEC section {operation.section}", style="bold")
    console.print(f"{operation.summary}; in optimized: {entry.place}\n")
    for member in entry.members:
        console.print(member.signature, style="cyan", soft_wrap=True)
        console.print(f"{member.text}\n", soft_wrap=True)
    for name, offered in offers.items():
        console.print_line(f"{name}  {offered[operation.name]}")
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    table.add_row("oracles", ", ".join(entry.oracles))
    table.add_row("boundaries", "\n".join(entry.boundaries))
    faults = [
        f"{name}: {f.error.__name__} on {f.named}" for name, f in operation.inputs.faults.items()
    ]
    table.add_row("faults", "\n".join(faults) or "none")
    console.print(table)
    console.print()
