"""Operations that a user defines: files and modules of `--operations`, and installed packages.

An operation is registered once in this process; processes that are started anew read the files
from the environment.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from attnproof import reference
from attnproof.harness.escaping import escape_line
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.run import Cause, OperationResult
from attnproof.harness.operations import ALL
from attnproof.harness.operations.derived.derive import derive
from attnproof.harness.operations.derived.remarks import lone_axes
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.json_definitions import read_definition
from attnproof.harness.running.own_trial import relative, try_reference
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


def definition_in_use(name: str) -> Definition:
    """Return the definition of a registered operation."""
    definition = definition_of(getattr(reference, name))
    assert definition is not None
    return definition


def notes_on_failures(results: Iterable[OperationResult]) -> list[str]:
    """Return what the definitions of operations that failed leave open."""
    failed = {r.name for r in results if r.verdict == "FAIL" or r.cause is Cause.REFERENCE_FAILED}
    definitions = map(definition_in_use, sorted(failed & own_names()))
    return [remark for definition in definitions for remark in lone_axes(definition)]


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
            try_reference(definition, operation, more)
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
        raise UsageError(relative(str(error))) from None
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
                f"{relative(definition.place)}: the name {definition.name} is taken at "
                f"{relative(first[definition.name].place)}: give one of them another one with "
                f"@operation(name=...)"
            )


def _derived(definition: Definition, more: dict[str, Any]) -> Operation:
    name, place = definition.name, relative(definition.place)
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
