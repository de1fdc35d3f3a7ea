"""The program of a finding that makes one call: it needs torch and the candidate's module alone."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from attnproof.harness.cases.layers import tolerance
from attnproof.harness.interfaces import DEFAULT
from attnproof.harness.model.call import Free
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.place import Place, by_place
from attnproof.harness.operations.shared.sequence import import_lines
from attnproof.harness.oracles.attempt import ATOMS
from attnproof.harness.oracles.equality import is_tolerant, same
from attnproof.harness.oracles.trial import Trial
from attnproof.harness.running.programs.source import NoProgramError, Source, parts_of
from attnproof.reference.interface import MetadataError

_HEAD = '''\
"""Case {case} of {name}: exits with 1 if a value is not the expected one."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from dataclasses import is_dataclass, make_dataclass
from math import inf, nan
from types import SimpleNamespace

import numpy as np
import torch

{imports}

parser = ArgumentParser()
parser.add_argument("--device", default="{device}")
DEVICE = parser.parse_args().device
'''
_HELPERS = {
    "class_of": '''
def class_of(name, *fields, bases=()):
    """Return the candidate's dataclass of this name, else one with these fields."""
    own = getattr(candidate, name, None)
    return own if is_dataclass(own) else make_dataclass(name, fields, bases=bases, kw_only=True)
''',
    "strided": '''
def strided(values, *strides):
    """Return a copy with these strides, in elements; zeros lie between the elements."""
    words = 1 + sum((size - 1) * stride for size, stride in zip(values.shape, strides))
    memory = values.new_zeros(words if values.numel() else 0)
    return memory.as_strided(values.shape, strides).copy_(values)
''',
    "check": '''
def check(name, got, expected):
    """Raise AssertionError with the first wrong element unless the value is the expected one."""
    if not hasattr(expected, "dtype"):
        assert got == expected, f"{name} is {got!r}, expected {expected!r}"
        return
    form, right = (
        (getattr(value, "dtype", type(value)), *getattr(value, "shape", ()))
        for value in (got, expected)
    )
    assert form == right, f"{name} is {form}, expected {right}"
    got, right = torch.as_tensor(got).cpu(), torch.as_tensor(expected)
    if right.is_floating_point():
        got, right = got.double(), right.double()
    wrong = ((got != right) & ((got == got) | (right == right))).nonzero().tolist()  # NaN is NaN
    for at in wrong[:1]:
        pair = [tensor[tuple(at)].item() for tensor in (got, right)]
        count = f"{len(wrong)} of {right.numel()} elements differ"
        raise AssertionError(f"{name}{at or ''} is {pair[0]}, expected {pair[1]}; {count}")
''',
    "check_close": "\n\n".join(
        [
            *[f"\n{name} = {getattr(tolerance, name)}" for name in ("TOLERANCES", "_ELEMENT")],
            f"_NARROW = {tolerance._NARROW}\n",
            inspect.getsource(tolerance.close),
            inspect.getsource(tolerance.norms_of_rows),
            inspect.getsource(tolerance.without_infinities),
            inspect.getsource(tolerance.rounding_near_0),
            inspect.getsource(tolerance.farthest),
            '''\
def check_close(name, got, expected, tolerance=None):
    """Raise AssertionError with the farthest element unless all are within the tolerance."""
    got = got.cpu()
    if tolerance is not None:
        expected, got = without_infinities(expected, got)
    if not close(expected, got, tolerance):
        at = farthest(expected, got) or ()
        values = f"{got[at]}, expected {expected[at]}"
        raise AssertionError(f"{name}{list(at) or ''} is {values}: the farthest of {got.numel()}")
''',
        ]
    ),
}


def standalone_program(trial: Trial, candidate: Candidate, wrong: Collection[str]) -> str:
    """Return a program that makes the call of a case and compares with the reference's values.

    It exits with 1 if one of the `wrong` outputs has another value. Raise NoProgramError.
    """
    operation, case = trial.operation, trial.case
    if type(operation.call) is not FunctionCall:
        raise NoProgramError(f"{operation.name} is no call of one function")
    if case.before:
        raise NoProgramError("the failure needs the calls before it")
    if re.search(r"^attnproof\b|\.(toml|json)$", candidate.target):
        raise NoProgramError("the candidate's functions are called through attnproof")
    if not Path(candidate.target).stem.isidentifier():
        raise NoProgramError("the name of the candidate's file is no name of a module")
    if candidate.interface not in ("", DEFAULT):
        raise NoProgramError(f"the arguments are converted to classes of {candidate.interface}")
    source, call = Source(candidate.device), trial.prepare(0)
    for name, value in (call.args | call.kwargs).items():
        source.assign(name, value, call)
    arguments = ", ".join([*call.args, *[f"{name}={name}" for name in call.kwargs]])
    line = f"result = {operation.name}({arguments})"
    checks = _raising(trial, line) if case.fault else [line, *_checks(trial, source, wrong)]
    body = "\n".join([*source.lines, "", *checks, ""])
    helpers = [text for name, text in _HELPERS.items() if f"{name}(" in body]
    imports = import_lines(candidate.target, [operation.name])
    if "class_of(" in body:
        module = imports[-1].split()[1]
        imports += [f"import {module} as candidate"]
    if candidate.lane == "interpreter":
        imports.insert(0, 'os.environ["TRITON_INTERPRET"] = "1"')
    head = _HEAD.format(
        case=case.id,
        name=operation.name,
        device=candidate.device,
        imports="\n".join(line for line in imports if line not in ("", "import sys")),
    )
    return _without_unused("\n".join([head, *helpers, "", body]))


def _without_unused(program: str) -> str:
    """Return the program without imports of names that it does not use."""
    lines = program.splitlines(keepends=True)
    imports = [re.match(r"(?:from (?!__)\w+ )?import (.*)\n", line) for line in lines]
    names = [re.findall(r"(\w+)(?:,|$)", line[1]) if line else [] for line in imports]
    return "".join(
        line
        for line, bound in zip(lines, names, strict=True)
        if not bound or any(len(re.findall(rf"\b{name}\b", program)) > 1 for name in bound)
    )


def _raising(trial: Trial, line: str) -> list[str]:
    """Return the call of malformed input, which must raise."""
    fault = trial.fault
    error = ValueError if fault.error is MetadataError else fault.error
    named = "" if fault.any_field else f"    assert {fault.named!r} in str(error), error"
    return [
        "try:",
        f"    {line}",
        f"except ({'ValueError, TypeError' if fault.any_error else error.__name__}) as error:",
        named or "    print(error)",
        "else:",
        f'    raise AssertionError(f"malformed {fault.named} is accepted: {{result}}")',
    ]


def _checks(trial: Trial, source: Source, wrong: Collection[str]) -> list[str]:
    """Return a line for each value of the reference that is part of its result or arguments."""
    operation, call = trial.operation, trial.prepare(0)
    if operation.contract.for_reference is not None:
        operation.contract.for_reference(call)
    result = operation.call.run(trial.reference, call)
    outputs = by_place(operation.call.outputs(call, result))
    parts = [*parts_of("result", result)]
    parts += [part for item in (call.args | call.kwargs).items() for part in parts_of(*item)]
    lines: dict[Place, str] = {}
    for place, right in outputs.items():
        path = _path(place, right, parts)
        if not path or isinstance(right, Free):
            continue
        function, allowed = "check", ""
        if is_tolerant(operation, place, right):
            error = operation.contract.tolerances.get(place.root)
            function, allowed = "check_close", "" if error is None else f", {error}"
        lines[place] = f'{function}("{path}", {path}, {source.of(right)}{allowed})'
    whole = [f'check("{path}", {path}, {source.of(value)})' for path, value in _literals(result)]
    others = outputs.keys() - lines
    # A literal result says nothing of the tensors that the call has written.
    literal = {place for place in others if whole and not isinstance(outputs[place], torch.Tensor)}
    shown = {str(place) for place in literal.union(lines)}
    if wrong and not shown.intersection(wrong):
        raise NoProgramError(f"{next(iter(wrong))} is no part of the result or of an argument")
    return [*dict.fromkeys([*lines.values(), *(whole if others else ())])]


def _path(place: Place, right: Any, parts: list[tuple[str, Any]]) -> str:
    """Return the expression of an output, "" if it is no part of the result or of an argument."""
    if isinstance(right, torch.Tensor):
        copied = (_copied(path, part, right) for path, part in parts if path == place.field)
        views = (_view(path, part, right) for path, part in parts)
        return next(filter(None, (*views, *copied)), "")
    child = "" if place.child is None else f"[{place.child}]"
    ends = (place.field, f".{place.field.rpartition('.')[2]}")
    return next(
        (
            path
            for path, part in parts
            if child in path and path.endswith(ends) and same(right, part)
        ),
        "",
    )


def _view(path: str, part: Any, right: torch.Tensor) -> str:
    """Return the expression by which a tensor is `right`, its first rows or its words, or ""."""
    if not isinstance(part, torch.Tensor) or part.ndim != right.ndim:
        return ""
    if part is not right and (not right.numel() or part.data_ptr() != right.data_ptr()):
        return ""
    if part.stride() != right.stride() or part.itemsize != right.itemsize:
        return ""
    if any(size < wanted for size, wanted in zip(part.shape, right.shape, strict=True)):
        return ""
    view = "" if part.dtype == right.dtype else f".view({right.dtype})"
    if part.shape == right.shape:
        return path + view
    return f"{path}[{', '.join(f':{size}' for size in right.shape)}]{view}"


def _copied(path: str, part: Any, right: torch.Tensor) -> str:
    """Return the expression of an argument of which `right` is a copy, perhaps of its words."""
    if not isinstance(part, torch.Tensor) or part.shape != right.shape:
        return ""
    if part.itemsize != right.itemsize or not torch.equal(part.view(right.dtype), right):
        return ""
    return path if part.dtype == right.dtype else f"{path}.view({right.dtype})"


def _literals(result: Any) -> list[tuple[str, Any]]:
    """Return the parts of a result that hold numbers only, each as a whole."""
    if _is_literal(result):
        return [("result", result)]
    items = enumerate(result) if type(result) in (list, tuple) else ()
    return [(f"result[{index}]", item) for index, item in items if _is_literal(item)]


def _is_literal(value: Any) -> bool:
    if type(value) is dict:
        return all(map(_is_literal, value.values()))
    return type(value) in ATOMS or (type(value) in (list, tuple) and all(map(_is_literal, value)))
