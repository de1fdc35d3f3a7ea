"""The order to a process that verifies, and its answer."""

from __future__ import annotations

import msgspec

from attnproof.harness.model.run import Run


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A verification to make: options as on the command line."""

    candidates: list[str]
    ops: str
    contract: str
    fail_on: str
    device: str
    deviations: list[str]
    interface: str
    stub: str
    out: str
    kept: bool
    """True if the folder `out` stays: then its report is written."""
    examples: int | None
    steps: int | None
    depth: str
    seed: int | None
    traces: list[str]
    corpus: str | None
    jobs: int
    timeout_s: float
    memory_gib: float
    remember: bool
    progress: bool
    """True to print a line for each operation to standard output."""
    answer: str
    """File for the answer."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a verification, or the error that it ended with."""

    run: Run | None = None
    exit_code: int
    """Exit code that `attnproof verify` ends with."""
    error: str = ""
    """One line on why there is no run."""
    summary: str = ""
    cards: dict[str, str] = {}
    """Plain text of each finding by its id: the mistake, a picture of the case, how to replay."""
    report: str = ""
    """Folder of the report, "" if none was kept."""
