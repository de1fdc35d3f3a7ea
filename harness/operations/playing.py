"""Playing a sequence: its steps are run as source on a candidate's names, and looked at.

What is run is what a failure shows as a snippet, line by line.
"""

from __future__ import annotations

import traceback
from functools import lru_cache
from types import CodeType
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st

from harness.model.case import Case
from harness.model.operation import Call, Operation, Outputs, Script, Sequence


class Transcript(NamedTuple):
    """What was seen after each step."""

    steps: list[Outputs]
    error: BaseException | None = None
    """What a step raised that is not bad input: the sequence ended there."""
    log: str = ""


def prepare_script(sequence: Sequence, case: Case, pattern: int) -> Call:
    """A call whose only argument is the script of the case."""
    return Call([sequence.script(case, pattern)], facts={"case": case})


def play(sequence: Sequence, parts: Any, script: Script) -> Transcript:
    """Run the script on the names in `parts`, looking at everything after each step."""
    names = dict(vars(parts))
    exec(_source(script.setup), names)
    try:
        return _play_lines(sequence, script, names)
    finally:
        exec(_source(script.teardown), names)


def _play_lines(sequence: Sequence, script: Script, names: dict[str, Any]) -> Transcript:
    steps: list[Outputs] = []
    for line in script.lines:
        error = _raised(line.code, names)
        seen: Outputs = {"raises": _kind(error)}
        try:
            seen |= {name: _copy(value) for name, value in sequence.observe(names).items()}
        except (TypeError, ValueError, IndexError, KeyError, AttributeError) as unreadable:
            error = error or unreadable
            seen["raises"] = f"unreadable: {unreadable}"
            steps.append(seen)
            return Transcript(steps, error, _log(error))
        steps.append(seen)
        if error is not None and not line.raises:
            return Transcript(steps, error, _log(error))
    return Transcript(steps)


def sequence_operation(*, name: str, sequence: Sequence, **fields: Any) -> Operation:
    """An operation of many steps; `fields` are the others of `Operation` that it needs."""

    def run(parts: Any, call: Call) -> Transcript:
        return play(sequence, parts, call.args[0])

    return Operation(
        name=name,
        sequence=sequence,
        cases=st.nothing,
        prepare=lambda case, pattern, _device: prepare_script(sequence, case, pattern),
        run=run,
        outputs=transcript_outputs,
        **fields,
    )


def snippet(operation: Operation, script: Script, imports: list[str], last: str) -> str:
    """The sequence as a program that a person can run, up to what went wrong.

    `imports` name the candidate's and the reference's parts; `last` is the wrong field
    of the last step, which the program prints.
    """
    steps = [f"{line.code}  # {n}. {line.label}" for n, line in enumerate(script.lines, 1)]
    show = f'print(ALL["{operation.name}"].sequence.observe(globals())["{last}"])'
    parts = ["\n".join([*imports, "from harness.operations import ALL"]), script.setup]
    return "\n\n".join([*filter(None, parts), "\n".join([*steps, *([show] if last else [])])])


def transcript_outputs(_call: Call, result: Transcript) -> Outputs:
    """All steps' outputs by name, those of step 2 as `[2].name`."""
    return {
        f"[{index}].{name}": value
        for index, outputs in enumerate(result.steps)
        for name, value in outputs.items()
    }


@lru_cache(4096)
def _source(code: str) -> CodeType:
    return compile(code, "<sequence>", "exec")


def _raised(code: str, names: dict[str, Any]) -> BaseException | None:
    try:
        exec(_source(code), names)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a candidate may raise anything, SystemExit too
        return error
    return None


def _kind(error: BaseException | None) -> str | None:
    """Class of the error; a candidate of its own need not know MetadataError."""
    if error is None:
        return None
    return "ValueError" if isinstance(error, ValueError) else type(error).__name__


def _log(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)[-12:])


def _copy(value: Any) -> Any:
    """The value as it is now: what is looked at lives on and changes."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, list):
        return list(value)
    return value
