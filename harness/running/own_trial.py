"""The trial of an operation that a user defines: its reference is called before anything runs."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from attnproof import reference
from attnproof.harness.escaping import escape_line
from attnproof.harness.model.call import MISSING
from attnproof.harness.model.case import Case
from attnproof.harness.model.operation import Operation
from attnproof.harness.operations.derived.params import Form, form_of, parameters_of, usual
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.processes.linux import die_with_parent, limit_memory
from attnproof.reference.definition.definition import Definition, DefinitionError

TRIAL_S = 10.0
"""Seconds in which the reference must compute its first cases."""
_TRIAL_BYTES = 1 << 30
"""Memory that it may allocate for them."""
_TRIED = 3
"""Cases of each definition that its reference is called on first, beside those of `_is_extreme`."""
_DONE = "done"
"""Last line of a process in which all of them went well."""
_REFUSED = "refused"
"""First word of the last line, before the message, if a function of `values` raises."""
_HIGHEST = 2**31 - 1
"""Highest value of a number without a limit `below`."""
_CHANGES = "changes its input "
"""Beginning of the problem of a reference that writes an argument."""
_UNWRITTEN = "raises NotImplementedError"
"""Problem of a reference that `attnproof init` wrote."""


def relative(text: str) -> str:
    """Return a message whose file is named from the current folder."""
    file, separator, rest = text.partition(":")
    return escape_line(
        f"{os.path.relpath(file)}{separator}{rest}" if Path(file).is_file() else text
    )


def try_reference(definition: Definition, operation: Operation, more: dict[str, Any]) -> None:
    """Call the reference on its first cases in a process of its own (UsageError)."""
    form = form_of(definition, more.get("values"), more.get("parameters"))
    code, text = _forked(operation, form)
    name, _, problem = text.rpartition("\n")[2].partition("\t")
    if name == _DONE and not code:
        return
    if name == _REFUSED:
        raise UsageError(problem)
    if code == -signal.SIGALRM:
        problem = f"does not return within {TRIAL_S:g} s"
    elif not problem:
        how = f"by signal {-code}" if code < 0 else f"with status {code}"
        problem = f"ends its process {how}"
    place = relative(definition.place)
    if problem == _UNWRITTEN:
        raise UsageError(
            f"{place}: the reference of {definition.name} is not written yet: its body raises "
            f"NotImplementedError"
        )
    hint = _hint(definition, name, problem)
    raise UsageError(
        f"{place}: the reference of {definition.name} {problem}, on the case {name!r}{hint}"
    )


def _hint(definition: Definition, name: str, problem: str) -> str:
    """Return what else to declare if the reference is right, "" if nothing may be missing."""
    if str(_HIGHEST) in name:
        return ": declare it with Int(below=...)"
    changed = problem.removeprefix(_CHANGES).rpartition(".")[2]  # "[0].name" in a step
    is_named = any(argument.name == changed for argument in definition.every_argument)
    if problem.startswith(_CHANGES) and is_named and not definition.place.endswith(".json"):
        return ": if it is to be filled, declare it with Array(..., written=True)"
    return ""


def _forked(operation: Operation, form: Form) -> tuple[int, str]:
    """Return the exit code, and the cases' names and the problem of the last one."""
    read, write = os.pipe()
    owner, pid = os.getpid(), os.fork()
    if not pid:
        status = 1
        with suppress(BaseException):
            os.close(read)
            die_with_parent(owner, signal.SIGKILL)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, TRIAL_S)
            limit_memory(_TRIAL_BYTES)
            try:
                _call_first(operation, form, write)
            except DefinitionError as error:
                os.write(write, f"\n{_REFUSED}\t{relative(str(error))}".encode()[:4000])
            status = 0
        os._exit(status)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read().decode(errors="replace")
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), text


def _call_first(operation: Operation, form: Form, pipe: int) -> None:
    """Write a line for each case: its name before the call, and then a problem, which is the last.

    The cases of a class are made here too, because they take calls of its reference.
    """
    try:
        boundaries = operation.inputs.boundaries()
        cases = list(islice(boundaries, _TRIED))
        os.write(pipe, b"\na number at its limit")
        cases += [(name, case) for name, case in boundaries if _is_extreme(case)]
    except DefinitionError:
        raise
    except Exception as error:  # of a condition, or of a class that is instantiated
        text = escape_line(f"makes no cases: {type(error).__name__}: {error}")
        os.write(pipe, f"\nany\t{text}".encode()[:4000])
        return
    if not cases:
        unmet = "has conditions that no usual arguments meet"
        if not form.definition.has_batch:
            plain = Case(operation.name, None, usual(parameters_of(form)))
            unmet += escape_line(f": {operation.inputs.problem(plain)}")
        os.write(pipe, f"\nany\t{unmet}".encode()[:4000])
        return
    for name, case in cases:
        os.write(pipe, f"\n{name}".encode())
        problem = _called(operation, case)
        if problem:
            os.write(pipe, f"\t{problem[:2000]}".encode())
            return
    os.write(pipe, f"\n{_DONE}".encode())


def _is_extreme(case: Case) -> bool:
    """True if a number of a case, or of its steps, is the highest one of an int32."""
    steps = (step for step in case.params.get("steps", ()) if isinstance(step, dict))
    return any(_HIGHEST in params.values() for params in (case.params, *steps))


def _called(operation: Operation, case: Case) -> str:
    ours = {operation.name: getattr(reference, operation.name)}
    offered = operation.call.offered(ours, ours, built_in=True)
    call = operation.call.prepare(case, 0, "cpu")
    try:
        outputs = operation.call.outputs(call, operation.call.run(offered, call))
    except DefinitionError as error:
        return escape_line(f"returns what it does not declare: {relative(str(error))}")
    except NotImplementedError as error:
        return escape_line(f"raises NotImplementedError: {error}") if str(error) else _UNWRITTEN
    except MemoryError:
        return f"allocates more than {_TRIAL_BYTES >> 30} GiB"
    except (Exception, SystemExit) as error:
        refusal = "; a step refuses its arguments with MetadataError" * ("steps" in case.params)
        return escape_line(f"raises {type(error).__name__}: {error}{refusal}")
    writes = call.arena.unexpected_writes(call.written)
    if writes:
        return f"{_CHANGES}{writes[0].name}"
    absent = [str(place) for place, value in outputs.items() if value is MISSING]
    if absent:
        return f"has no attribute {absent[0]}, which is declared as its state"
    judge = operation.contract.invariants
    for violation in judge(call, outputs) if judge else ():
        return f"contradicts its declaration: {violation.field} {violation.text}: declare numbers"
    return ""
