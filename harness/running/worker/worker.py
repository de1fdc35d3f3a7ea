"""The process in which a candidate runs; a candidate that crashes ends this process only.

The task sends one message a case and gets one reply: the raw outputs of the calls and what
was observed of them. Standard output and error are files: the worker reads its own output, and
the task reads the errors of a worker that did not reply.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import sys
import time
import traceback
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import msgspec
import torch

from attnproof import reference
from attnproof.harness.interfaces.weakest import earlier_form
from attnproof.harness.model.candidate import OPTIMIZED, Candidate, NotProvidedError
from attnproof.harness.model.case import decode
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.text import text_of, utf8
from attnproof.harness.oracles.device import DeviceLostError, select
from attnproof.harness.oracles.trial import Trial
from attnproof.harness.phases import Phase, Process, counted, enter_process
from attnproof.harness.running.candidates import is_ours
from attnproof.harness.running.exchange.memory import SharedMemory
from attnproof.harness.running.exchange.observer import Observer
from attnproof.harness.running.exchange.reports import Observed
from attnproof.harness.running.extras import required_by
from attnproof.harness.running.interface_choice import interface_to_adapt, with_named_interface
from attnproof.harness.running.loading import (
    enter_lane,
    exchange,
    imports_once,
    load,
    offered_by,
    withheld,
)
from attnproof.harness.running.processes.channel import FORKED_STATUS, Channel, messages
from attnproof.harness.running.processes.linux import limit_memory
from attnproof.harness.running.worker.interpreter import skip_discarded_checks, skip_repeated_work
from attnproof.harness.running.worker.kernel_names import names_kernel
from attnproof.harness.running.worker.misspelt import misspelt
from attnproof.harness.running.worker.places import place_of
from attnproof.harness.running.worker.signatures import Misfit, misfits

IMPORT = b"import"
JUDGE, JUDGE_UNREPEATED, JUDGE_UNPOISONED, JUDGE_FIRST = b"J", b"U", b"N", b"F"
CALL_ONCE, CALL_AFTER, CALL_IN_PLACE, CALL_WITHIN, CALL_STEPS = b"C", b"A", b"P", b"W", b"S"
"""Kinds of messages; those of CALL_AFTER, CALL_IN_PLACE and CALL_WITHIN hold two cases, one a line,
those of CALL_STEPS more."""
_MOST_OUTPUT = 1 << 20
"""Bytes of standard error that are kept for the next case."""
_MOST_PRINTED = 2000
_FORKED_S = 0.3
"""Seconds that a new child of the process may take to end as a forked copy."""


class Order(msgspec.Struct, frozen=True):
    """Options of a worker."""

    candidate: Candidate
    operations: list[str]
    """Names of the operations to look for."""
    memory_bytes: int
    exchanged: tuple[str, ...] = ()
    """Names of functions that are exchanged for the reference's."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The candidate is imported."""

    offers: dict[str, tuple[str, ...]]
    """Operations that it has functions or classes for; of a sequence, the names it has."""
    withheld: dict[str, str]
    """Reasons that the candidate gives for operations it does not offer, by name."""
    compiles: bool
    """True if a first call may compile a kernel."""
    places: dict[str, str] = {}
    """Source of the function or class of each operation, such as "backend.py:12"."""
    misspelt: dict[str, str] = {}
    """Names of the candidate's functions by the operations not offered that they resemble."""
    interface: str = ""
    """The interface that the candidate's classes have chosen, "" if it had one before."""
    interface_reason: str = ""
    forms: dict[str, str] = {}
    """Interfaces whose arguments the functions take, where those of later engines are lacking."""
    launching: frozenset[str] = frozenset()
    """Operations whose functions name kernels of Triton, of a candidate on the CPU."""
    misfits: dict[str, Misfit] = {}
    """Operations of which no call fits the candidate's signature."""


class Unloadable(msgspec.Struct, frozen=True, tag=True):
    """The candidate's import failed."""

    reason: str


class Lost(msgspec.Struct, frozen=True, tag=True):
    """The candidate has made the device unusable for this process."""

    reason: str
    log: str


class Invalid(msgspec.Struct, frozen=True, tag=True):
    """The harness failed on the case: a meaningless case, or a bug of the harness."""

    reason: str
    log: str
    """Traceback."""
    not_provided: bool = False
    """True if the candidate needs what only an installed engine has."""


Reply = Ready | Unloadable | Observed | Lost | Invalid


def serve(
    operations: dict[str, Operation], memory: SharedMemory, order: bytes, channel: Channel
) -> None:
    """Reply to messages until the task closes the channel."""
    enter_process(Process.WORKER)
    wanted: Order = pickle.loads(order)
    faulthandler.enable(file=2, all_threads=False)
    enter_lane(wanted.candidate)
    if wanted.candidate.lane == "interpreter":
        skip_discarded_checks()
        skip_repeated_work()
    _Worker(operations, wanted, memory, channel).serve()


class _Worker:
    def __init__(
        self,
        operations: dict[str, Operation],
        order: Order,
        memory: SharedMemory,
        channel: Channel,
    ) -> None:
        self._candidate = candidate = order.candidate
        self._operations = {name: operations[name] for name in order.operations}
        self._limit = None if candidate.device != "cpu" else order.memory_bytes
        self._memory = memory
        self._channel = channel
        self._exchanged = order.exchanged
        self._offers: dict[str, Any] = {}
        self._had_children = False
        """True if children were running after the last case."""

    def serve(self) -> None:
        """Import the candidate at the first message, call it at the others."""
        for message in messages(self._channel):
            reply = self._imported() if message == IMPORT else self._called(message)
            self._channel.send(msgspec.msgpack.encode(reply))
            if isinstance(reply, Unloadable | Lost):
                return

    def _imported(self) -> Reply:
        """Import the candidate and limit the memory that it may allocate from now on."""
        known = set(sys.modules)
        # A context of a GPU reserves more address space than any limit.
        limit_memory(self._limit)
        try:
            module = load(self._candidate)
            select(self._candidate.device)
            exchange(module, self._exchanged)
            chosen = with_named_interface(self._candidate, module)
            interface = interface_to_adapt(chosen)
            self._offers = {
                name: offered_by(module, op, interface) for name, op in self._operations.items()
            }
            reasons = {name: utf8(withheld(module, name)) for name in self._offers}
        except BaseException as error:  # an import may raise anything, and so may a look-up
            return Unloadable(f"{type(error).__name__}: {text_of(error, str)}"[:500])
        limit_memory(None)
        for name, operation in self._operations.items():
            if self._offers[name] is not None:
                with suppress(Exception):  # a call that needs it fails with the same error
                    operation.built_in.load()
        # Otherwise each garbage collection visits every imported object: a fifth of the time.
        gc.freeze()
        limit_memory(self._limit)
        _printed()
        return Ready(
            {
                name: tuple(getattr(offer, "own", ()))
                for name, offer in self._offers.items()
                if offer is not None
            },
            {name: reason for name, reason in reasons.items() if reason},
            imports_once(self._candidate) or _may_compile(module, set(sys.modules) - known),
            self._places(module),
            self._misspelt(module),
            "" if chosen is self._candidate else chosen.interface,
            utf8(chosen.interface_reason),
            _forms(module, self._offers),
            self._launching(module),
            dict(misfits(module, self._operations.values(), interface)),
        )

    def _launching(self, module: Any) -> frozenset[str]:
        """Return the operations that may launch Triton, none if it cannot be told."""
        if self._candidate.lane != "cpu" or is_ours(self._candidate):
            return frozenset()
        package = str(getattr(module, "__name__", "")).partition(".")[0]
        try:
            return frozenset(
                name
                for name, operation in self._operations.items()
                if self._offers[name] is not None
                for part in operation.call.names(name)
                if names_kernel(getattr(module, part, None), package)
            )
        except BaseException:  # the candidate has broken what the search needs
            return frozenset()

    def _misspelt(self, module: Any) -> dict[str, str]:
        """Return the functions that nearly have an operation's name, none if it cannot be told."""
        try:
            absent = [name for name, offer in self._offers.items() if offer is None]
            return {name: utf8(own) for name, own in misspelt(module, absent).items()}
        except BaseException:  # a candidate that is no module, or that breaks the search
            return {}

    def _places(self, module: Any) -> dict[str, str]:
        """Return file and line of each operation's function, none if they cannot be found."""
        try:
            return {
                name: place_of(module, operation.call.names(name))
                for name, operation in self._operations.items()
                if self._offers[name] is not None
            }
        except BaseException:  # the candidate has broken what the search needs
            return {}

    def _called(self, message: bytes) -> Reply:
        """Call the candidate on the case of a message, or on its cases."""
        kind, (*earlier, trial) = message[:1], map(self._trial, message[1:].splitlines())
        try:
            observer = Observer(trial, self._memory, self._channel.end_forked)
            if kind in (CALL_AFTER, CALL_IN_PLACE):
                report = observer.observe_after(earlier[0], in_place=kind == CALL_IN_PLACE)
            elif kind == CALL_WITHIN:
                report = observer.observe_within(earlier[0])
            elif kind == CALL_STEPS:
                # xformers specialises its kernel by the number of rows, which we cannot mend.
                own = self._candidate.target == OPTIMIZED
                package = trial.operation.built_in.package if own else ""
                report = observer.observe_steps(earlier, package)
            else:
                report = observer.observe(
                    once=kind == CALL_ONCE,
                    repeated=kind in (JUDGE, JUDGE_UNPOISONED),
                    poisoned=kind in (JUDGE, JUDGE_UNREPEATED),
                )
        except DeviceLostError as error:
            log = "".join(traceback.format_exception(error.__cause__)[-12:])
            return Lost(utf8(str(error)).splitlines()[0][:200], utf8(log))
        except NotProvidedError as error:
            return Invalid(utf8(str(error)), "", not_provided=True)
        except Exception as error:  # an error of the harness: the task reports it
            log = "".join(traceback.format_exception(error)[-12:])
            return Invalid(f"{type(error).__name__}: {text_of(error, str)}", utf8(log))
        forked = _has_forked(0.0 if self._had_children else _FORKED_S)
        self._had_children = _has_children()
        return Observed(
            **report, printed=_printed(), has_children=self._had_children, forked=forked
        )

    @counted(Phase.RECEIVE)
    def _trial(self, data: bytes) -> Trial:
        """Return a trial of the candidate on an encoded case."""
        case = decode(data)
        operation = self._operations[case.operation]
        return Trial(
            operation,
            case,
            self._offers[operation.name],
            offered_by(reference, operation),
            self._candidate.device,
            of_reference=self._candidate.target == reference.__name__,
        )


def _forms(module: Any, names: Iterable[str]) -> dict[str, str]:
    """Return the earlier forms of the candidate's functions by operation."""
    try:
        forms = {name: earlier_form(name, getattr(module, name, None)) for name in names}
    except BaseException:  # a candidate that breaks the look-up
        return {}
    return {name: form for name, form in forms.items() if form}


def _may_compile(module: Any, imported: set[str]) -> bool:
    """True if the candidate, or a module that it has imported, has compiled functions."""
    modules = [module, *(sys.modules.get(name) for name in imported)]
    # The attribute of a class is a descriptor, not a string, if its metaclass has one.
    return any(
        str(type(value).__module__).startswith(("numba.", "triton."))
        for each in modules
        for value in list(getattr(each, "__dict__", {}).values())
    )


def _printed() -> str:
    """Return what was written to standard output since the last call; keep both files small."""
    with suppress(Exception):  # the candidate may have replaced or closed it
        sys.stdout.flush()
    try:
        size = os.fstat(1).st_size
        if os.fstat(2).st_size > _MOST_OUTPUT:
            _empty(2)
        if not size:
            return ""
        text = os.pread(1, min(size, _MOST_PRINTED), 0)
        _empty(1)
    except OSError as error:
        return f"(standard output cannot be read: {error.strerror})"
    return text.decode(errors="replace")


def _empty(stream: int) -> None:
    os.ftruncate(stream, 0)
    os.lseek(stream, 0, os.SEEK_SET)


def _has_children() -> bool:
    """True if the process has children that are running."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False


def _has_forked(seconds: float) -> bool:
    """True if a forked copy of this process has returned from the candidate's code, and ended.

    A copy that still runs may take some seconds to end.
    """
    end = time.monotonic() + seconds
    with suppress(ChildProcessError):
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None and ended.si_status == FORKED_STATUS:
                os.waitpid(ended.si_pid, 0)
                return True
            if ended is not None or time.monotonic() >= end:
                return False
            time.sleep(0.005)
    return False


def warm_up(candidates: Iterable[Candidate] = ()) -> None:
    """Load the libraries that workers of these candidates need, before the first one is forked.

    Does not import Triton, which selects its interpreter when it is imported, and numba only
    for the candidates of attnproof itself.
    """
    torch.set_num_threads(1)
    if not any("numba" in required_by(candidate) for candidate in candidates):
        return
    import numba

    # Any compilation sets up numba's compiler: 0.3 s, otherwise spent on each worker's first case.
    numba.njit("int64(int64)")(lambda number: number)
