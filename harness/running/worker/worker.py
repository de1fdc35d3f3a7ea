"""The process in which a candidate runs; a candidate that crashes ends this process only.

The task sends one message a case and gets one reply. Standard output and error are files: the
worker reads its own output, and the task reads the errors of a worker that did not reply.
"""

from __future__ import annotations

import faulthandler
import gc
import resource
import traceback
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import torch

from attnproof import reference
from attnproof.harness.escaping import escape_tree
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Case, decode
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.verdict import Explanation, Failure, Verdict
from attnproof.harness.operations.shared.sequence import snippet
from attnproof.harness.oracles import call_once, judge
from attnproof.harness.oracles.device import DeviceLostError
from attnproof.harness.oracles.equality import agrees, as_array, type_name
from attnproof.harness.oracles.trial import PrintWatch, Trial
from attnproof.harness.running.candidates import enter_lane, load, offered_by, withheld
from attnproof.harness.running.child import messages
from attnproof.harness.running.worker.interpreter import skip_discarded_checks, skip_repeated_work

JUDGE, JUDGE_AND_DIGEST, JUDGE_UNREPEATED = b"J", b"D", b"U"
CALL_ONCE, EXPLAIN = b"C", b"E"


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The candidate is imported."""

    offers: tuple[str, ...]
    """Names of the operations that it has functions or classes for."""
    withheld: dict[str, str] = {}
    """Reasons that the candidate gives for operations it does not offer, by name."""


class Unloadable(msgspec.Struct, frozen=True, tag=True):
    """The candidate's import failed."""

    reason: str


class Judged(msgspec.Struct, frozen=True, tag=True):
    """The verdict on one case."""

    verdict: Verdict


class Explained(msgspec.Struct, frozen=True, tag=True):
    """Both sides' outputs for one case."""

    explanation: Explanation


class Lost(msgspec.Struct, frozen=True, tag=True):
    """The candidate has made the device unusable for this process."""

    reason: str
    log: str


class Invalid(msgspec.Struct, frozen=True, tag=True):
    """The harness failed on the case: a meaningless case, or a bug of the harness."""

    reason: str


Reply = Ready | Unloadable | Judged | Explained | Lost | Invalid
PRINTS = Failure(
    oracle="process",
    field="",
    diagnosis="writes to standard output",
    message="the candidate wrote to standard output",
)


def serve(
    candidate: Candidate,
    operations: dict[str, Operation],
    memory_bytes: int,
    connection: Connection,
) -> None:
    """Reply to messages until the task closes the pipe."""
    faulthandler.enable(file=2, all_threads=False)
    enter_lane(candidate)
    if candidate.lane == "interpreter":
        skip_discarded_checks()
        skip_repeated_work()
    try:
        module = load(candidate)
    except BaseException as error:  # an import may raise anything
        _send(connection, Unloadable(f"{type(error).__name__}: {error}"[:500]))
        return
    offers = {name: offered_by(module, op) for name, op in operations.items()}
    for name, operation in operations.items():
        if offers[name] is not None:
            operation.built_in.load()
    offered = tuple(name for name, offer in offers.items() if offer is not None)
    reasons = {name: reason for name in offers if (reason := withheld(module, name))}
    # Otherwise each garbage collection visits every imported object: a fifth of the time.
    gc.freeze()
    _send(connection, Ready(offered, reasons))
    if candidate.lane != "cuda":  # a CUDA context reserves more address space than any limit
        _limit_memory(memory_bytes)
    watch = PrintWatch()
    watch.take()
    for message in messages(connection):
        case = decode(message[1:])
        trial = _trial(operations[case.operation], case, offers[case.operation], candidate)
        _send(connection, _answer(message[:1], trial, watch, candidate.target))


def _trial(operation: Operation, case: Case, offer: Any, candidate: Candidate) -> Trial:
    return Trial(operation, case, offer, offered_by(reference, operation), candidate.device)


def _answer(kind: bytes, trial: Trial, watch: PrintWatch, target: str) -> Reply:
    try:
        if kind == EXPLAIN:
            return Explained(explain(trial, target))
        if kind == CALL_ONCE:
            verdict = call_once(trial)
        else:
            digested, repeated = kind == JUDGE_AND_DIGEST, kind != JUDGE_UNREPEATED
            verdict = judge(trial, digested=digested, repeated=repeated)
    except DeviceLostError as error:
        log = "".join(traceback.format_exception(error.__cause__)[-12:])
        return Lost(str(error).splitlines()[0][:200], log)
    except Exception as error:  # an error of the harness: the task reports it
        return Invalid(f"{type(error).__name__}: {error}")
    printed = watch.take()
    if printed:
        failure = msgspec.structs.replace(PRINTS, got=printed[:200], log=printed)
        verdict = msgspec.structs.replace(verdict, failures=(*verdict.failures, failure))
    return Judged(verdict)


def explain(trial: Trial, target: str) -> Explanation:
    """Return the first call's outputs beside the reference's, and the program of a sequence."""
    made = trial.first
    if trial.case.fault:
        return Explanation([], made.log)
    outputs = []
    for place, right in trial.expected.items():
        got = made.outputs.get(place)
        outputs.append(
            {
                "field": str(place) if place.step is None else place.field,
                "step": place.step,
                "expected": _plain(right),
                "got": _plain(got),
                "expected_type": type_name(right),
                "got_type": type_name(got),
                "equal": agrees(trial.operation, place, right, got),
            }
        )
    script = trial.operation.call.script(trial.case)
    if script is None:
        return Explanation(outputs, made.log)
    return Explanation(
        outputs,
        made.log,
        [(line.label, line.code) for line in script.lines],
        snippet(trial.operation, script, trial.function, target),
    )


def _plain(value: Any) -> Any:
    array = as_array(value)
    if array is not None:
        return array.tolist()
    return value if isinstance(value, bool | int | str | list | None) else repr(value)


def _limit_memory(extra_bytes: int) -> None:
    """Let the process grow by at most `extra_bytes` of address space."""
    with open("/proc/self/statm", encoding="ascii") as statm:  # noqa: PTH123
        used = int(statm.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + extra_bytes, hard))


def _send(connection: Connection, reply: Reply) -> None:
    try:
        encoded = msgspec.msgpack.encode(reply)
    except UnicodeEncodeError:  # a text of the candidate has a lone surrogate
        plain = escape_tree(msgspec.to_builtins(reply, builtin_types=(bytes,)))
        encoded = msgspec.msgpack.encode(plain)
    connection.send_bytes(encoded)


def warm_up() -> None:
    """Load the libraries that every worker needs, before the first one is forked.

    Does not import Triton, which selects its interpreter when it is imported.
    """
    import numba

    torch.set_num_threads(1)
    # Any compilation sets up numba's compiler: 0.3 s, otherwise spent on each worker's first case.
    numba.njit("int64(int64)")(lambda number: number)
