"""The process that verifies for `attnproof.verify`, so that the caller's process stays as it is."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from attnproof.api.card import finding_card
from attnproof.api.exchange import Answer, Order
from attnproof.harness.guard import attempt
from attnproof.harness.model.run import Finding, Run
from attnproof.harness.report.shared.finding_text import FindingText
from attnproof.harness.running.errors import AttnproofError
from attnproof.harness.running.parent.session import ProgressCallbacks
from attnproof.harness.running.processes.linux import die_with_parent
from attnproof.harness.running.task.task import Outcome
from attnproof.harness.verbs.closing_summary import closing_summary
from attnproof.harness.verbs.options import VerifyOptions
from attnproof.harness.verbs.progress import print_result, run_progress
from attnproof.harness.verbs.verification import exit_code, run_verification


def main(order: bytes, parent: int) -> None:
    """Carry out the order and write the answer to its file; end when `parent` has ended."""
    die_with_parent(parent, signal.SIGTERM)
    decoded = msgspec.json.decode(order, type=Order)
    try:
        answer = _verified(decoded)
    except AttnproofError as error:
        answer = Answer(exit_code=error.exit_code, error=str(error))
    Path(decoded.answer).write_bytes(msgspec.msgpack.encode(answer))


def _verified(order: Order) -> Answer:
    options = VerifyOptions(
        candidates=order.candidates,
        ops=order.ops,
        contract=order.contract,
        fail_on=order.fail_on,
        device=order.device,
        deviations=order.deviations,
        interface=order.interface,
        stub=order.stub,
        out=Path(order.out),
        examples=order.examples,
        steps=order.steps,
        depth=order.depth,
        seed=order.seed,
        traces=[Path(trace) for trace in order.traces],
        corpus=None if order.corpus is None else Path(order.corpus),
        jobs=order.jobs,
        timeout_s=order.timeout_s,
        memory_gib=order.memory_gib,
        remember=order.remember,
    )
    done = run_verification(
        options,
        run_progress if order.progress else _silent,
        print_result if order.progress else _ignore,
        command="attnproof.verify",
    )
    place = done.output.folder
    if order.kept:
        place = done.output.finish(done.run, done.candidates)
    else:
        done.output.discard()
    run = done.run if order.kept else _without_files(done.run)
    summary = attempt("the summary", lambda: closing_summary(run, place), str)
    if not order.kept:  # the folder is gone
        summary = summary.replace(f": {place / 'index.html'}#advice", ": see run.advice")
        summary = summary.rpartition("\nreport: ")[0] or summary
    return Answer(
        run=run,
        exit_code=exit_code(run),
        summary=summary,
        cards={
            finding.id: attempt("the card", partial(finding_card, finding, finding.command), str)
            for finding in [*run.findings, *run.advice]
        },
        report=str(place) if order.kept else "",
    )


def _without_files(run: Run) -> Run:
    """Return the run with commands that hold their cases, as no file of them is kept."""
    return msgspec.structs.replace(
        run,
        findings=[_inline(finding) for finding in run.findings],
        advice=[_inline(finding) for finding in run.advice],
    )


def _inline(finding: Finding) -> Finding:
    command = FindingText(finding).inline_replay()
    return msgspec.structs.replace(finding, command=command, case_path="")


@contextmanager
def _silent(_expected_cases: int) -> Iterator[ProgressCallbacks]:
    """Yield callbacks that print nothing."""
    yield ProgressCallbacks(
        planned=lambda _total: None,
        started=lambda _operation, _candidate: None,
        progressed=lambda _operation, _candidate, _cases: None,
        ended=_ignore,
        tick=lambda: None,
    )


def _ignore(_outcome: Outcome) -> None:
    """Do nothing."""


def serve() -> None:
    """Read the order from standard input, and carry it out."""
    with os.fdopen(0, "rb", closefd=False) as stream:
        data = stream.read()
    main(data, os.getppid())
