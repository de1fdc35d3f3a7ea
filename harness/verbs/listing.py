"""`attnproof list`: the operations, their oracles, and the candidates that offer them."""

from __future__ import annotations

from typing import NamedTuple

from rich.table import Table

from attnproof.harness.escaping import escape_line
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.operations import ALL
from attnproof.harness.operations.derived.remarks import lone_axes, unchecked_independence
from attnproof.harness.report.catalogue import Entry, entry_of, page
from attnproof.harness.running.candidates import BUILT_IN, resolve
from attnproof.harness.running.engines import untried_notes
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.interface_choice import with_interface
from attnproof.harness.running.own_operations import definition_in_use, own_names, use_operations
from attnproof.harness.running.task.workers import Worker
from attnproof.harness.running.worker.worker import warm_up
from attnproof.harness.verbs.messages import say
from attnproof.harness.verbs.operation_index import index_of, offer
from attnproof.harness.verbs.operation_table import make_console, print_index, read_index
from attnproof.harness.verbs.options import MEMORY_BYTES, CallOptions, ListOptions
from attnproof.harness.verbs.progress import print_interface
from attnproof.harness.verbs.screen import Screen
from attnproof.harness.verbs.selection import pick_operations
from attnproof.reference.definition.definition import DefinitionError


def show_operations(options: ListOptions) -> None:
    """Print a table of all operations, or the named ones in full. Raise UsageError."""
    if options.markdown and options.candidates:
        raise UsageError("--markdown lists no candidates: leave out --candidate")
    use_operations(options.definitions)
    names = options.operations
    # First, since it adds the operations of metadata builders.
    named = resolve(options.candidates, "auto", options.stub) if options.candidates else []
    try:
        entries = [entry_of(operation) for operation in pick_operations(",".join(names))]
    except DefinitionError as error:  # of a function of `values`, on a later case
        raise UsageError(str(error)) from None
    if options.markdown:
        say(page(entries).removesuffix("\n"))
        return
    if named:
        candidates = with_interface(named, "")
        offers = {candidate.name: _offers(candidate) for candidate in candidates}
        for note in untried_notes(candidates):
            say(f"note: {note}")
    else:
        offers = _built_in_offers()
    if not names:
        words = {name: {op: o.word for op, o in by.items()} for name, by in offers.items()}
        print_index(index_of(entries, words), wide=options.wide, chosen=bool(options.candidates))
        return
    console = make_console()
    for entry in entries:
        _print_entry(console, entry, offers, wide=options.wide)


_FEW = 10
"""Most edge cases or faults that are listed unasked: more of them hide the signature."""


class _Offer(NamedTuple):
    word: str
    reason: str = ""
    """Reason that the candidate gives for an operation it does not offer."""

    def __str__(self) -> str:
        return f"{self.word}: {self.reason}" if self.reason else self.word


def _built_in_offers() -> dict[str, dict[str, _Offer]]:
    """Return the offers of the built-in candidates, which may lack packages that they need."""
    by_name = {row.name: row.offers for row in read_index().operations}
    words = {name: by_name.get(name, {}) for name in ALL}  # none of the user's own operations
    return {
        candidate.name: {
            n: _Offer(by.get(candidate.name, "not offered")) for n, by in words.items()
        }
        for candidate in BUILT_IN
    }


def _offers(candidate: Candidate) -> dict[str, _Offer]:
    """Return the candidate's offer of each operation, such as "kernels", by name."""
    warm_up([candidate])
    worker = Worker(candidate, ALL, timeout_s=CallOptions.timeout_s, memory_bytes=MEMORY_BYTES)
    worker.stop()
    print_interface(worker.candidate)
    for name, misfit in worker.misfits.items():
        say(escape_line(f"note: {name} of {candidate.name}: {misfit.sentence}"))
    offers = {n: _Offer(offer(candidate, op, n in worker.offers)) for n, op in ALL.items()}
    return offers | {name: _Offer("not offered", why) for name, why in worker.withheld.items()}


def _print_entry(
    console: Screen, entry: Entry, offers: dict[str, dict[str, _Offer]], *, wide: bool
) -> None:
    """Print signatures, docstrings, oracles, boundaries and faults of one operation.

    Many boundaries or faults are counted, and listed if `wide`.
    """
    operation = entry.operation
    console.print(f"{operation.name}, {operation.specification}", style="bold")
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
    faults = [
        f"{name}: {f.error.__name__} on {f.named}" for name, f in operation.inputs.faults.items()
    ]
    for title, names in (("boundaries", entry.boundaries), ("faults", faults)):
        listed = wide or len(names) <= _FEW
        table.add_row(
            title, "\n".join(names) or "none" if listed else f"{len(names)} (--wide lists them)"
        )
    if operation.name in own_names():
        definition = definition_in_use(operation.name)
        remarks = [*lone_axes(definition), *unchecked_independence(definition, operation)]
        table.add_row("remarks", "\n".join(remarks) or "none")
    console.print(table)
    console.print()
