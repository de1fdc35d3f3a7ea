"""Resolve names to candidates."""

from __future__ import annotations

import os
import re
from collections import Counter
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path

import msgspec

from attnproof.harness.escaping import escape_line
from attnproof.harness.interfaces import INTERFACES
from attnproof.harness.model.candidate import OPTIMIZED, REFERENCE, Candidate, Lane, device_type
from attnproof.harness.model.files import read_regular
from attnproof.harness.model.text import near_hint
from attnproof.harness.running.adapting import read_adapter
from attnproof.harness.running.engine_stub import (
    STUB,
    check_stub,
)
from attnproof.harness.running.engines import (
    ADAPTERS,
    engine_of,
    find_spec,
    installed_version,
    require_engine,
)
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.extras import absence
from attnproof.harness.running.json_solutions import check_solution
from attnproof.harness.running.own_builders import use_builders

GROUP = "attnproof.candidates"
"""Group of entry points that name candidates.

A candidate of an engine's interface may be in a group of its own: `attnproof.candidates.vllm_0_32`.
"""
BUILT_IN = (
    Candidate("optimized", OPTIMIZED),
    Candidate("optimized-unchecked", OPTIMIZED, checked=False),
    Candidate("optimized-triton", OPTIMIZED, "interpreter", kernels_only=True),
)
_REFERENCE = Candidate("reference", REFERENCE)
_DEVIATIONS = "adapters/{}_deviations.toml"
"""File of an adapter's known deviations, in the folder of the harness."""


def _adapter(name: str, target: str, lane: Lane = "cpu") -> Candidate:
    path = Path(__file__).parents[1] / _DEVIATIONS.format(target.removeprefix(ADAPTERS))
    # Malformed input would make kernels that check nothing write anywhere.
    engine = engine_of(target)
    kernels = engine is not None and engine.kernels
    # The interpreter keeps such a write within the process.
    kernels |= target == f"{ADAPTERS}vllm_triton" and lane != "interpreter"
    checked = lane == "cpu" or not kernels
    return Candidate(name, target, lane, checked=checked, deviations=(str(path),))


_ENGINES = (
    _adapter("vllm", f"{ADAPTERS}vllm"),
    _adapter("vllm-triton", f"{ADAPTERS}vllm_triton", "interpreter"),
    _adapter("sglang", f"{ADAPTERS}sglang"),
    # FlashInfer has nothing for a CPU.
    _adapter("flashinfer", f"{ADAPTERS}flashinfer", "interpreter"),
)
SDPA = Candidate("torch-sdpa", "attnproof.harness.timing.torch_sdpa", checked=False)
"""Attention of torch over keys and values that it gathers, a peer to time beside."""
_NAMED = (*BUILT_IN, _REFERENCE, *_ENGINES, SDPA)


def resolve(names: list[str], device: str, stub: str = "") -> list[Candidate]:
    """Return the candidates with these names; without names the built-in ones (UsageError).

    `device` is "auto", "interpreter" or a device of torch, such as "cpu" or "cuda:1". With
    "auto" a built-in candidate keeps its own lane, and any other candidate runs on the CPU.
    `stub` is the engine whose stub the user's candidates import, "" for none or a table's.
    Registers the operations of their builders.
    """
    if stub:
        check_stub(stub)
    if device_type(device) == "cpu":
        device = "cpu"
    if not names:
        if device not in ("auto", "cpu", "interpreter"):
            return [_present(Candidate("optimized", OPTIMIZED, device))]
        lanes = {"auto": ("cpu", "interpreter")}.get(device, (device,))
        return [_present(candidate) for candidate in BUILT_IN if candidate.lane in lanes]
    candidates = {name: _present(_resolve(name, device)) for name in names}
    stubbed = [
        msgspec.structs.replace(candidate, stub=stub)
        if stub and not is_ours(candidate)
        else candidate
        for candidate in _distinct(candidates)
    ]
    use_builders(stubbed)
    return stubbed


def is_ours(candidate: Candidate) -> bool:
    """True for a built-in candidate and an adapter."""
    ours = (OPTIMIZED, REFERENCE)
    return candidate.target in ours or engine_of(candidate.target) is not None


def _present(candidate: Candidate) -> Candidate:
    """Return the candidate if the packages that it needs are installed (UsageError)."""
    if problem := absence(candidate):
        raise UsageError(f"{problem}, or name a candidate of your own with --candidate")
    return candidate


def _distinct(candidates: dict[str, Candidate]) -> list[Candidate]:
    """Return the candidates; rename those with the same name to the text that the user typed."""
    counts = Counter(candidate.name for candidate in candidates.values())
    return [
        candidate
        if counts[candidate.name] == 1
        else msgspec.structs.replace(candidate, name=escape_line(typed))
        for typed, candidate in candidates.items()
    ]


def _resolve(name: str, device: str) -> Candidate:
    lane: Lane = "cpu" if device == "auto" else device
    if not name:
        raise UsageError("--candidate is empty: name a built-in candidate, a module or a file")
    for candidate in _NAMED:
        if candidate.name == name:
            require_engine(candidate.name, candidate.target)
            return candidate if device == "auto" else _in_lane(candidate, lane)
    installed = _entry_points()
    if name in installed:
        target, interface = installed[name]
        return Candidate(name, target, lane, interface=interface)
    path = Path(name)
    if path.suffix == ".json":
        check_solution(path)
        return Candidate(escape_line(path.stem), str(path.resolve()), lane)
    if path.suffix == ".toml":
        table = read_adapter(path)
        why = "declared by its table" if table.interface else ""
        # A table is for machines with the engine too.
        stub = table.stub if find_spec(STUB) is None else ""
        return Candidate(
            escape_line(path.stem),
            str(path.resolve()),
            lane,
            interface=table.interface,
            interface_reason=why,
            stub=stub,
        )
    if path.suffix == ".py" or os.path.isdir(path) or os.sep in name:  # noqa: PTH112
        source = _checked(path).resolve()
        source = source.parent if source.name == "__init__.py" else source
        return Candidate(escape_line(source.stem), str(source), lane)
    # Only the worker looks for more than the package: that would import it here.
    words = name.split(".")
    if not all(map(str.isidentifier, words)) or find_spec(words[0]) is None:
        names = [c.name for c in _NAMED] + sorted(installed)
        files = [file.name for kind in ("*.py", "*.toml") for file in Path().glob(kind)]
        raise UsageError(
            f"no candidate {name!r}: {near_hint(name, names + files)}not built in or installed "
            f"({', '.join(names)}), not an importable module, not a file"
        )
    if engine_of(name) is None:
        return Candidate(name, name, lane)
    candidate = _adapter(name, name, lane)
    require_engine(candidate.name, candidate.target)
    return candidate


def installed_target(name: str) -> str | None:
    """Return the target of a built-in candidate or an installed entry point, None without one."""
    targets = {entry: target for entry, (target, _) in _entry_points().items()}
    return ({known.name: known.target for known in _NAMED} | targets).get(name)


def _entry_points() -> dict[str, tuple[str, str]]:
    """Return the entry points by name: `module` or `module:object`, and the declared interface.

    The interface is "" where the group is that of all candidates.
    """
    groups = {GROUP: ""} | {f"{GROUP}.{re.sub('[-.]', '_', name)}": name for name in INTERFACES}
    return {
        entry.name: (entry.value, interface)
        for group, interface in groups.items()
        for entry in entry_points(group=group)
    }


def name_of(candidate: Candidate) -> str:
    """Return the name by which `resolve` finds the candidate."""
    if any(candidate.name == known.name and candidate.target == known.target for known in _NAMED):
        return candidate.name
    path = Path(candidate.target)
    if path.is_absolute():
        return os.path.relpath(path)
    # `resolve` finds an object in a module only by the name of its entry point.
    return candidate.name if ":" in candidate.target else candidate.target


def _in_lane(candidate: Candidate, lane: Lane) -> Candidate:
    """Return the built-in candidate in another lane (UsageError)."""
    if candidate.kernels_only and lane == "cpu":
        raise UsageError(f"{candidate.name} has no lane cpu: its kernels need another --device")
    if engine_of(candidate.target) is not None:
        return _adapter(candidate.name, candidate.target, lane)
    kernels_only = lane == "interpreter" and candidate.target == OPTIMIZED
    return msgspec.structs.replace(candidate, lane=lane, kernels_only=kernels_only)


def _checked(path: Path) -> Path:
    """Return the path of a Python file or package that compiles (UsageError)."""
    # Not `path.is_dir()`, which raises for a name that is too long.
    source = path / "__init__.py" if os.path.isdir(path) else path  # noqa: PTH112
    try:
        compile(read_regular(source), str(path), "exec")  # bytes, which may name their encoding
    except FileNotFoundError:
        raise UsageError(f"candidate file {source} does not exist") from None
    except OSError as error:
        raise UsageError(f"candidate file {source} cannot be read: {error}") from None
    except (MemoryError, RecursionError):
        raise UsageError(f"candidate file {source} is nested too deeply") from None
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise UsageError(f"candidate file {source}, line {line}: {error.args[0]}") from None
    return path


@lru_cache(maxsize=100)
def version_of(candidate: Candidate) -> str:
    """Return the version of a candidate's installed package, "" without one.

    Does not import the package.
    """
    if Path(candidate.target).is_absolute():
        return ""
    engine = engine_of(candidate.target)
    if engine is not None:
        return engine.version
    return installed_version(re.split(r"[.:]", candidate.target, maxsplit=1)[0])
