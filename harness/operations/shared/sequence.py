"""Execution of a sequence: the statements of each step are run on a candidate's names and observed.

The snippet of a failure is written from the same statements, line by line.
"""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.model.call import Call, Facts, Outputs
from attnproof.harness.model.call_kinds import Parts
from attnproof.harness.model.case import Case
from attnproof.harness.model.operation import Inputs, Operation
from attnproof.harness.model.place import of_steps
from attnproof.harness.model.program import Line, Script, import_names, run

SEQUENCE_NOT_TIMED = "a sequence of many calls: its parts are timed by themselves"

_Key = TypeVar("_Key")


class Transcript(NamedTuple):
    """Outputs observed after each step of a sequence."""

    steps: list[Outputs]
    error: BaseException | None = None
    """Unexpected exception of the last step, None if all steps ran."""
    log: str = ""


Step = dict[str, Any]


def step_pairs(
    kinds: Mapping[str, Sequence[Step]], before: Sequence[Step], after: Sequence[Step]
) -> Iterator[tuple[str, list[Step]]]:
    """Yield the steps in which each kind comes next to each other one, by the first one's name.

    `before` and `after` stand around each pair: they make the state, and read it.
    """
    for name, first in kinds.items():
        pairs = [(*before, *first, *second, *after) for second in kinds.values()]
        yield f"{name}, then each kind of step", [step for pair in pairs for step in pair]


@dataclass(frozen=True, kw_only=True)
class SequenceFacts(Facts):
    """Facts of a sequence."""

    case: Case


@dataclass(frozen=True, kw_only=True)
class SequenceCall:
    """Call of many steps on the same objects: statements, run and observation of the steps.

    The case holds the steps as numbers in its parameter `steps`. Any list of steps is valid
    (a step that does not apply is left out), so that a case shrinks by dropping steps.
    """

    parts: tuple[str, ...]
    """Names that the script uses; the reference fills in those that the candidate lacks."""
    write: Callable[[Case, int], Script]
    """Case and poison pattern (0 or 1) to the program."""
    observe: Callable[[dict[str, Any]], Outputs]
    """Program's variables to the outputs to compare after a step, without stale data."""
    reference_only: tuple[str, ...] = ()
    """Names that the script uses, of functions that are always the reference's."""
    isolated: bool = False
    """True if the steps change the process: each sequence then gets a process of its own."""
    poisons: bool = True
    """False if neither the program nor the candidate has tensors."""

    compared_by: ClassVar[str] = "sequences"
    takes_arguments: ClassVar[bool] = False
    repeatable: ClassVar[bool] = True

    def names(self, _operation: str) -> tuple[str, ...]:
        """Return the names that the script uses."""
        return (*self.parts, *self.reference_only)

    def offered(self, own: dict[str, Any], ours: dict[str, Any], *, built_in: bool) -> Any:  # noqa: ARG002
        """Return the parts, None if the candidate has none of them."""
        own = {name: part for name, part in own.items() if name in self.parts}
        return Parts(ours | own, tuple(own)) if own else None

    def prepare(self, case: Case, pattern: int, _device: str) -> Call:
        """Return a call whose only argument is the script of the case."""
        return Call({"script": self.write(case, pattern)}, facts=SequenceFacts(case=case))

    def run(self, offered: Parts, call: Call) -> Transcript:
        """Run the script on the parts."""
        return run_script(self, offered, call["script"])

    def outputs(self, _call: Call, result: Transcript) -> Outputs:
        """Return the outputs of all steps."""
        return of_steps(result.steps)

    def bind(self, offered: Parts, call: Call) -> Callable[[], Any]:
        """Return the run of the whole script."""
        return partial(self.run, offered, call)

    def timed_outputs(self, _offered: Parts, call: Call, result: Transcript) -> Outputs:
        """Return the outputs of all steps."""
        return self.outputs(call, result)

    def script(self, case: Case) -> Script:
        """Return the program of the case."""
        return self.write(case, 0)


def run_script(sequence: SequenceCall, parts: Parts, script: Script) -> Transcript:
    """Run the script on the parts and observe the outputs after each step."""
    names = dict(parts.names)
    if sequence.isolated:
        return _in_fork(lambda: _run_lines(sequence, script, names))
    return _run_lines(sequence, script, names)


def _in_fork(run_lines: Callable[[], Transcript]) -> Transcript:
    """Return the function's transcript from a forked process, which then ends."""
    receiving, sending = os.pipe()
    child = os.fork()
    if not child:
        try:
            steps, error, log = run_lines()
            data = pickle.dumps((steps, error and repr(error), log))
            with os.fdopen(sending, "wb") as pipe:
                pipe.write(data)
        finally:
            os._exit(0)
    os.close(sending)
    with os.fdopen(receiving, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    if not data:
        return Transcript([], ended := RuntimeError("the process ended"), str(ended))
    steps, error, log = pickle.loads(data)
    return Transcript(steps, error and RuntimeError(error), log)


def _run_lines(sequence: SequenceCall, script: Script, names: dict[str, Any]) -> Transcript:
    names |= import_names(script)
    run(script.setup, names)
    steps: list[Outputs] = []
    for line in script.lines:
        error = _raised(line, names)
        outputs: Outputs = {"raises": _kind(error)}
        try:
            outputs |= {name: _copy(value) for name, value in sequence.observe(names).items()}
        except (TypeError, ValueError, IndexError, KeyError, AttributeError) as unreadable:
            error = error or unreadable
            outputs["raises"] = f"unreadable: {unreadable}"
            steps.append(outputs)
            return Transcript(steps, error, _log(error))
        steps.append(outputs)
        if error is not None and not line.raises:
            return Transcript(steps, error, _log(error))
    return Transcript(steps)


sequence_inputs = partial(Inputs, cases=st.nothing, has_batch=False)
"""Function that returns the inputs of a sequence, whose cases a state machine draws."""


def moved_tensors(names: dict[str, Any], tensors: dict[_Key, Any]) -> list[_Key]:
    """Return the tensors with another address than in the first step that had them."""
    addresses = names.setdefault("_addresses", {})
    at = {key: tensor.data_ptr() for key, tensor in tensors.items() if tensor.numel()}
    return [key for key, address in at.items() if addresses.setdefault(key, address) != address]


def snippet(operation: Operation, script: Script, parts: Parts, target: str) -> str:
    """Return the sequence as a stand-alone program, which prints its last outputs.

    `target` is the candidate's module or file.
    """
    used = [name for name in operation.call.names(operation.name) if name in script.names]
    others = [name for name in used if name not in parts.own]
    lines = [
        *import_lines(target, [name for name in used if name in parts.own]),
        *([f"from attnproof.reference import {', '.join(others)}"] if others else []),
        "from attnproof.harness.operations import ALL",
        "",
        script.setup_code,
        f'look = ALL["{operation.name}"].call.observe',
    ]
    for number, line in enumerate(script.lines, 1):
        # As in `run_script`, each step is observed: an observation can depend on earlier ones.
        lines += ["", f"# {number}. {line.label}", *_in_try(line), "seen = look(globals())"]
    return "\n".join([*lines, "", "print(seen)"])


def _in_try(line: Line) -> list[str]:
    """Return the step's source, with malformed input in a `try`, so that the program continues."""
    code = line.code.splitlines()
    if not line.raises:
        return code
    inner = [f"    {text}" for text in code]
    return [
        "try:",
        *inner,
        "except (TypeError, ValueError, RuntimeError) as refused:",
        "    print(refused)",
    ]


def import_lines(target: str, names: list[str]) -> list[str]:
    """Return the lines that import the names from a candidate's module or file."""
    if not names:
        return []
    path = Path(target)
    if not path.is_absolute():
        return [f"from {target.partition(':')[0]} import {', '.join(names)}"]
    folder, module = str(path.parent), path.stem
    imported = f"from {module} import {', '.join(names)}"
    return ["import sys", "", f"sys.path.insert(0, {folder!r})", imported]


def _raised(line: Line, names: dict[str, Any]) -> BaseException | None:
    try:
        run(line.statements, names)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a candidate may raise anything, SystemExit too
        return error
    return None


def _kind(error: BaseException | None) -> str | None:
    """Return the error's class; a candidate may raise ValueError in place of MetadataError."""
    if error is None:
        return None
    return "ValueError" if isinstance(error, ValueError) else type(error).__name__


def _log(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)[-12:])


def _copy(value: Any) -> Any:
    """Return a copy of the value: later steps may change the value itself."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, list):
        return list(value)
    return value
