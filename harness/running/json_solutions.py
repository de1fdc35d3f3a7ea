"""Solutions of flashinfer-bench as candidates: a JSON file with Python sources."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from importlib.abc import SourceLoader
from importlib.util import spec_from_loader
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import msgspec
import torch

from attnproof import reference
from attnproof.harness.escaping import escape_line
from attnproof.harness.model.files import read_regular
from attnproof.harness.operations import ALL
from attnproof.harness.running.errors import UsageError
from attnproof.reference.definition.checking import check
from attnproof.reference.definition.definition import Definition, definition_of


class _Source(msgspec.Struct):
    path: str
    content: str


class _Spec(msgspec.Struct):
    language: Literal["python", "triton"]
    entry_point: str
    destination_passing_style: bool | None = None


class _Solution(msgspec.Struct):
    definition: str
    spec: _Spec
    sources: list[_Source]


def check_solution(path: Path) -> None:
    """Raise UsageError for a file that is no solution in Python of a known operation."""
    try:
        solution = msgspec.json.decode(read_regular(path), type=_Solution)
    except OSError as error:
        raise UsageError(f"candidate file {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        text = f"candidate file {path} is no Solution in Python or Triton: {error}"
        raise UsageError(escape_line(text)) from None
    name, (file, _, function) = solution.definition, solution.spec.entry_point.partition("::")
    if name not in ALL or definition_of(getattr(reference, name, None)) is None:
        text = f"definition: {name!r} is no operation: name its file with --definition"
        raise UsageError(f"candidate file {path}: {escape_line(text)}")
    if file not in {source.path for source in solution.sources}:
        raise UsageError(f"candidate file {path}: spec.entry_point: no source is {file!r}")
    if not function.isidentifier():
        raise UsageError(f"candidate file {path}: spec.entry_point: write file.py::function")


def load_solution(path: Path) -> Any:
    """Import the sources; return an object with the entry point under the name of its operation."""
    solution = msgspec.json.decode(read_regular(path), type=_Solution)
    files = {source.path: source.content for source in solution.sources}
    sys.meta_path.insert(0, _Sources(files))
    own = {path.partition("/")[0].removesuffix(".py") for path in files}
    for loaded in [imported for imported in sys.modules if imported.partition(".")[0] in own]:
        del sys.modules[loaded]  # of another solution
    file, _, name = solution.spec.entry_point.partition("::")
    module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    definition = definition_of(getattr(reference, solution.definition))
    assert definition is not None
    entry, fills = getattr(module, name), solution.spec.destination_passing_style
    if fills is None:  # older files lack the field
        fills = len(inspect.signature(entry).parameters) > len(definition.arguments)
    return SimpleNamespace(**{solution.definition: _filling(entry, definition) if fills else entry})


class _Sources(SourceLoader):
    """Modules of a solution, which win over installed ones; nothing is written to disk."""

    def __init__(self, files: dict[str, str]) -> None:
        self._files = files

    def find_spec(self, fullname: str, *_: Any) -> Any:
        """Return the module, a package if it has files of its own."""
        base = fullname.replace(".", "/")
        is_package = any(file.startswith(f"{base}/") for file in self._files)
        is_found = is_package or f"{base}.py" in self._files
        return spec_from_loader(fullname, self, is_package=is_package) if is_found else None

    def get_filename(self, fullname: str) -> str:
        """Return the path of the module's file among the sources."""
        base = fullname.replace(".", "/")
        return f"{base}.py" if f"{base}.py" in self._files else f"{base}/__init__.py"

    def get_data(self, path: str) -> bytes:
        """Return a file's content, none for a package without `__init__.py`."""
        return self._files.get(path, "").encode()


def _filling(entry: Callable[..., Any], definition: Definition) -> Callable[..., Any]:
    """Return a function that allocates the outputs which the entry point fills."""

    flags = cycle((True, False))

    def call(*args: Any, **kwargs: Any) -> Any:
        values = definition.signature.bind(*args, **kwargs).arguments
        sizes = check(definition, values)
        tensors = [argument for argument in values.values() if isinstance(argument, torch.Tensor)]
        device = tensors[0].device if tensors else torch.device("cpu")
        outputs, flag = [], next(flags)
        for declared in (result.declared for result in definition.results):
            shape, dtype = [size.value(sizes) for size in declared.sizes], declared.dtypes[0]
            # An element that is not filled is wrong, a flag at least in each second call.
            fill = float("nan") if dtype.is_floating_point else flag
            if dtype is not torch.bool and not dtype.is_floating_point:
                fill = torch.iinfo(dtype).max
            outputs.append(torch.full(shape, fill, dtype=dtype, device=device))
        entry(*values.values(), *outputs)
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    return call
