"""The process that carries out orders: one on each worker of Ray, for one order after another.

Ray's own processes have threads, so that nothing may be forked there. This one is forked from for
each order, with everything imported.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from traceback import print_exception

import msgspec
from msgspec.msgpack import decode, encode

from attnproof import __version__
from attnproof.harness.campaign.examiner_process import ANSWERED, EXAMINE, FAILED, READY
from attnproof.harness.campaign.node import EXAMPLES
from attnproof.harness.campaign.records import Answer, LinkRequest, Order
from attnproof.harness.cases.steps.sampler import batches_from_sampler
from attnproof.harness.model.case import EngineStep
from attnproof.harness.model.run import Finding
from attnproof.harness.operations import ALL
from attnproof.harness.running.errors import AttnproofError, InfrastructureError
from attnproof.harness.running.own_operations import use_operations
from attnproof.harness.running.parent.plan import Plan
from attnproof.harness.running.parent.root_causes import link
from attnproof.harness.running.parent.session import ProgressCallbacks, run
from attnproof.harness.running.processes.linux import die_with_parent
from attnproof.harness.running.task.saved_failures import Failures, key_of
from attnproof.harness.running.task.task import Outcome


def examine(order: Order, folder: Path) -> Answer:
    """Carry out the order; failing cases appear in `folder` as they are found."""
    if order.version != __version__:
        here = f"{__version__} is installed on {os.uname().nodename}"
        raise InfrastructureError(f"attnproof {here}, {order.version} on the driver's machine")
    started, used = time.monotonic(), _cpu_s()
    database = Failures(folder / EXAMPLES)
    key = key_of(order.operation, order.candidate)
    for value in order.values:
        database.save(key, value)
    settings = msgspec.structs.replace(order.settings, examples_db=str(folder / EXAMPLES))
    drawn = order.steps
    steps = _sampled(drawn.count, drawn.seed)[drawn.part :: drawn.parts] if drawn else []
    plan = Plan([ALL[order.operation]], [order.candidate], settings, steps, [], 1)
    (outcome,), _ = run(plan, folder, _SILENT)
    known = {root_cause.root for root_cause in settings.known}
    brief = [_brief(finding) if finding.root in known else finding for finding in outcome.findings]
    if order.number is not None:
        outcome = msgspec.structs.replace(outcome, findings=brief)
    failing = set(database.fetch(key))
    return Answer(
        outcome=outcome,
        passing=tuple(value for value in order.values if value not in failing),
        seconds=round(time.monotonic() - started, 3),
        cpu_s=round(_cpu_s() - used, 3),
        machine=os.uname().nodename,
    )


def _cpu_s() -> float:
    """Return the CPU time of this process and of those that it has ended, in seconds."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, kinds))


@lru_cache(maxsize=2)
def _sampled(count: int, seed: int) -> list[EngineStep]:
    """Return the engine steps of a simulation: it takes 1.5 s, whatever their number."""
    return list(batches_from_sampler(count, seed).batches)


_SILENT = ProgressCallbacks(
    planned=lambda _total: None,
    started=lambda _operation, _candidate: None,
    progressed=lambda _operation, _candidate, _cases: None,
    ended=lambda _outcome: None,
    tick=lambda: None,
)


def _brief(finding: Finding) -> Finding:
    """Return the finding without what the driver has already."""
    return msgspec.structs.replace(finding, outputs=[], log="", snippet="", steps=[])


def _link(request: LinkRequest) -> list[Outcome]:
    operations = [ALL[name] for name in request.operations]
    plan = Plan(operations, request.candidates, request.settings, [], [], 1)
    return link(request.outcomes, plan)


def _serve(connection: Connection) -> None:
    """Answer requests until the other end is closed."""
    connection.send_bytes(READY)
    while True:
        try:
            kind, data, folder = (connection.recv_bytes() for _ in range(3))
        except EOFError:
            return
        state, answer = ANSWERED, b""
        try:
            if kind == EXAMINE:
                answer = encode(examine(decode(data, type=Order), Path(os.fsdecode(folder))))
            else:
                answer = encode(_link(decode(data, type=LinkRequest)))
        except Exception as error:  # of the harness or the machine; the driver tells it
            if not isinstance(error, AttnproofError):
                print_exception(error)
            state, answer = FAILED, f"{type(error).__name__}: {error}".encode(errors="replace")
        connection.send_bytes(state)
        connection.send_bytes(answer)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[2]), signal.SIGKILL)
    use_operations()
    _serve(Connection(int(sys.argv[1])))
