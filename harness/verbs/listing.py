"""`attnproof list`: the operations, what they are held to, and who offers them."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from harness.operations import ALL
from harness.oracles import CONTRACTS
from harness.running.candidates import BUILT_IN


def show_operations() -> None:
    """Print a table of the operations and one of the oracles."""
    console = Console()
    table = Table(title="Operations", title_justify="left", box=None, pad_edge=False)
    for heading in ("SPEC", "operation", "what it computes", "cases", "faults", "candidates"):
        table.add_column(heading, overflow="fold")
    for operation in ALL.values():
        offered = [c.name for c in BUILT_IN if operation.kernels or not c.kernels_only]
        table.add_row(
            operation.section,
            operation.name,
            operation.summary,
            str(sum(1 for _ in operation.boundaries())),
            str(len(operation.faults)),
            ", ".join(offered),
        )
    console.print(table)
    console.print()
    oracles = Table(title="Oracles", title_justify="left", box=None, pad_edge=False)
    for heading in ("oracle", "contract"):
        oracles.add_column(heading, overflow="fold")
    for name, contract in CONTRACTS.items():
        oracles.add_row(name, contract)
    console.print(oracles)
    console.print(
        "cases: boundary cases that are always run; faults: ways in which input is spoilt.",
        style="dim",
    )
