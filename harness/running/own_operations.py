"""Operations that a user defines: files and modules of `--operations`, and installed packages.

An operation is registered once in this process; processes that are started anew read the files
from the environment.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import entry_points
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

from attnproof import reference
from attnproof.harness.escaping import escape_line
from attnproof.harness.model.call import MISSING
from attnproof.harness.model.case import Case
from attnproof.harness.model.operation import Operation
from attnproof.harness.operations import ALL
from attnproof.harness.operations.derived.derive import derive
from attnproof.harness.operations.derived.params import Form, form_of, parameters_of, usual
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.json_definitions import read_definition
from attnproof.harness.running.processes.linux import die_with_parent, limit_memory
from attnproof.reference.definition.definition import (
    DEFINITION,
    Definition,
    DefinitionError,
    definition_of,
)

GROUP = "attnproof.operations"
"""Group of entry points that name modules of definitions."""
VARIABLE = "ATTNPROOF_OPERATIONS"
"""Environment variable with the files and modules, separated as in PATH."""
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
_UNWRITTEN = "raises NotImplementedError"
"""Problem of a reference that `attnproof init` wrote."""
_registered: dict[str, list[str]] = {}
"""Names of the operations of each source."""


def use_operations(sources: Iterable[str] = ()) -> None:
    """Register the operations of files, modules and installed packages (UsageError).

    A definition is refused before anything runs: in one line with its place.
    """
    inherited = [name for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
    named = [_absolute(name) for name in sources]
    installed = [entry.value for entry in entry_points(group=GROUP)]
    wanted = [*dict.fromkeys([*inherited, *named])]
    for source in dict.fromkeys([*installed, *wanted]):
        if source not in _registered:
            _registered[source] = _register(source)
    if wanted:
        os.environ[VARIABLE] = os.pathsep.join(wanted)


def sources_in_use() -> list[str]:
    """Return the files and modules of `--operations`, for command lines that repeat a run."""
    sources = os.environ.get(VARIABLE, "").split(os.pathsep)
    return [os.path.relpath(name) if Path(name).is_absolute() else name for name in sources if name]


def own_names() -> set[str]:
    """Return the names of the registered operations."""
    return {name for names in _registered.values() for name in names}


def _absolute(source: str) -> str:
    path = Path(source)
    if path.suffix not in (".py", ".json") and os.sep not in source:
        return source
    if not path.is_file():
        option = "--definition" if path.suffix == ".json" else "--operations"
        raise UsageError(f"{option} {escape_line(source)}: no such file")
    return str(path.resolve())


def _register(source: str) -> list[str]:
    """Register the operations of a source; return their names (UsageError)."""
    shown = _shown(source)
    more: dict[str, Any] = {}
    if source.endswith(".json"):
        definition, more = read_definition(source, shown)
        definitions = [definition]
    else:
        definitions = list(_definitions(_imported(source)))
    if not definitions:
        raise UsageError(f"{shown} defines no operation: decorate a reference with @operation")
    _check_names(definitions)
    operations = [_derived(definition, more) for definition in definitions]
    for definition, operation in zip(definitions, operations, strict=True):
        setattr(reference, definition.name, definition.function)
        ALL[operation.name] = operation
    try:
        for definition, operation in zip(definitions, operations, strict=True):
            _try(definition, operation, more)
    except UsageError:
        for definition in definitions:
            delattr(reference, definition.name)
            del ALL[definition.name]
        raise
    return [operation.name for operation in operations]


def _shown(source: str) -> str:
    path = Path(source)
    return escape_line(os.path.relpath(path) if path.is_absolute() else source)


def _imported(source: str) -> ModuleType:
    """Import the module (UsageError)."""
    path = Path(source)
    try:
        if not path.is_absolute():
            return importlib.import_module(source)
        sys.path.insert(0, str(path.parent))
        spec = importlib.util.spec_from_file_location(f"operations_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    except DefinitionError as error:
        raise UsageError(_relative(str(error))) from None
    except (Exception, SystemExit) as error:
        text = escape_line(f"{type(error).__name__}: {error}")
        raise UsageError(
            f"{_shown(source)}{_line(error, source)} cannot be imported: {text}"
        ) from None
    return module


def _line(error: BaseException, source: str) -> str:
    """Return ":" and the line of a file that fails to import, "" for a module's name."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == source]
    if isinstance(error, SyntaxError) and error.filename == source:
        lines.append(error.lineno)
    return f":{lines[-1]}" if lines else ""


def _relative(text: str) -> str:
    """Return a message whose file is named from the current folder."""
    file, separator, rest = text.partition(":")
    return escape_line(
        f"{os.path.relpath(file)}{separator}{rest}" if Path(file).is_file() else text
    )


def _definitions(module: ModuleType) -> Iterator[Definition]:
    # One entry for each object: it may have several names, a subclass inherits the attribute.
    for value in {id(value): value for value in vars(module).values()}.values():
        definition = definition_of(value)
        if definition is None or DEFINITION not in vars(value):
            continue
        if value.__module__ == module.__name__:
            yield _with_function(definition, value)


def _with_function(definition: Definition, value: Any) -> Definition:
    return replace(definition, function=value)  # the one that checks its arguments


def _check_names(definitions: list[Definition]) -> None:
    """Raise UsageError for the second definition of a name."""
    first: dict[str, Definition] = {}
    for definition in definitions:
        if first.setdefault(definition.name, definition) is not definition:
            raise UsageError(
                f"{_relative(definition.place)}: the name {definition.name} is taken at "
                f"{_relative(first[definition.name].place)}: give one of them another one with "
                f"@operation(name=...)"
            )


def _derived(definition: Definition, more: dict[str, Any]) -> Operation:
    name, place = definition.name, _relative(definition.place)
    if not name.isidentifier():
        raise UsageError(f"{place}: {name!r} is no name of a function")
    if name in ALL or hasattr(reference, name):
        raise UsageError(
            f"{place}: the name {name} is taken by an operation or class of attnproof: give yours "
            f"another one{'' if place.endswith('.json') else ' with @operation(name=...)'}"
        )
    if not definition.has_results:
        raise UsageError(f"{place}: {name} has no result to compare: it returns and writes nothing")
    return derive(definition, **more)


def _try(definition: Definition, operation: Operation, more: dict[str, Any]) -> None:
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
    place = _relative(definition.place)
    if problem == _UNWRITTEN:
        raise UsageError(
            f"{place}: the reference of {definition.name} is not written yet: its body raises "
            f"NotImplementedError"
        )
    limit = ": declare it with Int(below=...)" if str(_HIGHEST) in name else ""
    raise UsageError(
        f"{place}: the reference of {definition.name} {problem}, on the case {name!r}{limit}"
    )


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
                os.write(write, f"\n{_REFUSED}\t{_relative(str(error))}".encode()[:4000])
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
        return escape_line(f"returns what it does not declare: {_relative(str(error))}")
    except NotImplementedError as error:
        return escape_line(f"raises NotImplementedError: {error}") if str(error) else _UNWRITTEN
    except MemoryError:
        return f"allocates more than {_TRIAL_BYTES >> 30} GiB"
    except (Exception, SystemExit) as error:
        refusal = "; a step refuses its arguments with MetadataError" * ("steps" in case.params)
        return escape_line(f"raises {type(error).__name__}: {error}{refusal}")
    writes = call.arena.unexpected_writes(call.written)
    if writes:
        return f"changes its input {writes[0].name}"
    absent = [str(place) for place, value in outputs.items() if value is MISSING]
    if absent:
        return f"has no attribute {absent[0]}, which is declared as its state"
    judge = operation.contract.invariants
    for violation in judge(call, outputs) if judge else ():
        return f"contradicts its declaration: {violation.field} {violation.text}: declare numbers"
    return ""
