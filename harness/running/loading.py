"""Import candidates, and find their functions for operations."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec

from attnproof import reference
from attnproof.harness.interfaces import INTERFACES
from attnproof.harness.interfaces.naming import is_engine_batch
from attnproof.harness.model.candidate import OPTIMIZED, REFERENCE, Candidate
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Operation
from attnproof.harness.running.adapting import adapted, read_adapter, target_of
from attnproof.harness.running.engine_stub import import_advice, install_stub, is_of_stub
from attnproof.harness.running.engines import engine_of, find_spec
from attnproof.harness.running.json_solutions import load_solution


def enter_lane(candidate: Candidate) -> None:
    """Set the environment that Triton reads at its import; call it before `load`."""
    if candidate.lane == "interpreter":
        os.environ["TRITON_INTERPRET"] = "1"
    else:
        os.environ.pop("TRITON_INTERPRET", None)


def load(candidate: Candidate) -> Any:
    """Import the candidate: a module, or the object that an entry point names in it.

    Switches the checks of `optimized` on or off in this process. Raises whatever the import
    raises.
    """
    if candidate.stub:
        install_stub(candidate.interface)
    try:
        return _load(candidate)
    except ImportError as error:
        error.msg = import_advice(error) or error.msg
        raise


def _load(candidate: Candidate) -> Any:
    path = Path(candidate.target)
    if not path.is_absolute():
        module_name, _, attributes = candidate.target.partition(":")
        names = filter(None, attributes.split("."))
        loaded = reduce(getattr, names, importlib.import_module(module_name))
        if candidate.target == OPTIMIZED:
            loaded.checking.checks.on = candidate.checked
        return loaded
    if path.suffix == ".json":
        return load_solution(path)
    if path.suffix == ".toml":
        table = read_adapter(path)
        target = target_of(path, table)
        return adapted(path, table, _load(msgspec.structs.replace(candidate, target=target)))
    folder, dotted = _in_package(path)
    sys.path.insert(0, str(folder))
    if "." in dotted and _is_importable(dotted.partition(".")[0], folder):
        return importlib.import_module(dotted)
    name, source = path.stem, path
    if path.is_dir():
        name, source = path.name, path / "__init__.py"
    if name in sys.modules or (find_spec(name) is not None and not _is_here(name, path)):
        name = f"candidate_{name}"
    locations = [str(path)] if path.is_dir() else None
    spec = importlib.util.spec_from_file_location(
        name, source, submodule_search_locations=locations
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _in_package(path: Path) -> tuple[Path, str]:
    """Return the folder above the packages of a file or package folder, and its dotted name."""
    names, folder = [path.stem if path.suffix == ".py" else path.name], path.parent
    while folder.name.isidentifier() and (folder / "__init__.py").exists():
        names, folder = [folder.name, *names], folder.parent
    return folder, ".".join(names)


def _is_importable(name: str, folder: Path) -> bool:
    """True if an import of the package finds the one in the folder."""
    imported = sys.modules.get(name)
    if imported is None:
        return True
    return Path(str(imported.__file__)).parent.parent == folder


def exchange(candidate: Any, names: Iterable[str]) -> None:
    """Put the reference's functions in place of the candidate's, in all modules that name them."""
    for name in names:
        theirs, ours = getattr(candidate, name, None), getattr(reference, name)
        if not callable(theirs):
            continue
        for module in (candidate, *sys.modules.values()):
            members = getattr(module, "__dict__", {})
            for attribute in [key for key, value in members.items() if value is theirs]:
                setattr(module, attribute, ours)


def load_to_time(candidate: Candidate) -> Any:
    """Import the candidate as engines use it: `optimized` without its checks."""
    return load(msgspec.structs.replace(candidate, checked=False))


def faults_for(operation: Operation, candidate: Candidate) -> dict[str, Fault]:
    """Return the faults that the candidate must detect: none if it does not check its input."""
    return operation.inputs.faults_on(candidate.device) if candidate.checked else {}


def imports_once(candidate: Candidate) -> bool:
    """True if a task imports the candidate once, before it forks its workers."""
    # An engine's import takes seconds, Triton's 0.2 s. Each worker imports other candidates
    # itself: an unknown import may start threads or a CUDA context, which do not survive a fork.
    ours = engine_of(candidate.target) is not None or candidate.target == OPTIMIZED
    return ours and candidate.device == "cpu"


def preload(candidate: Candidate) -> None:
    """Import an engine or `optimized` in this process, for all workers that it forks.

    Ignores errors.
    """
    if not imports_once(candidate):
        return
    enter_lane(candidate)
    # The worker imports the candidate again, and reports the errors of that import.
    with _silenced(), suppress(BaseException):
        load(candidate)
        if candidate.lane == "interpreter":
            # Otherwise each worker imports the second module at its first launch of a kernel.
            for name in ("triton.runtime.interpreter", "triton.experimental.gluon"):
                importlib.import_module(name)


def preload_package(candidate: Candidate, operation: Operation) -> None:
    """Import the package that `optimized` needs for the operation, before workers are forked."""
    # xformers takes one to two seconds, which each worker would spend otherwise.
    if candidate.target == OPTIMIZED and imports_once(candidate):
        with suppress(ImportError):
            operation.built_in.load()


@contextmanager
def _silenced() -> Iterator[None]:
    """Discard everything written to standard output and error, also by compiled code."""
    kept = [os.dup(stream) for stream in (1, 2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for stream, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, stream)
            os.close(copy)
        os.close(nowhere)


def _is_here(name: str, path: Path) -> bool:
    spec = find_spec(name)
    return spec is not None and spec.origin is not None and Path(spec.origin).is_relative_to(path)


def offered_by(module: Any, operation: Operation, interface: str = "") -> Any:
    """Return the candidate's function, class or parts; None if the operation is not offered.

    Functions of an `interface` are adapted to our arguments and results.
    """
    if withheld(module, operation.name):
        return None
    names = operation.call.names(operation.name)
    attributes = {name: getattr(module, name, None) for name in names}
    built_in = getattr(module, "__name__", "") in (REFERENCE, OPTIMIZED)
    own = {
        name: part
        for name, part in attributes.items()
        if callable(part) and (built_in or not is_of_stub(part))
    }
    if interface:
        own = {name: part for name, part in own.items() if not is_engine_batch(part)}
        adapt = INTERFACES[interface].adapt
        own = {name: adapt(name, part) for name, part in own.items()}
    ours = {name: getattr(reference, name) for name in names}
    return operation.call.offered(own, ours, built_in=built_in)


def withheld(module: Any, name: str) -> str:
    """Return the reason that the candidate's NOT_OFFERED gives for an operation, or ""."""
    reasons = getattr(module, "NOT_OFFERED", None)
    return str(reasons.get(name, "")) if isinstance(reasons, dict) else ""
