"""Hold the results that live engines recorded against the reference.

The slots of every recorded batch and the result of every recorded call are compared with what
the reference computes from the recorded arguments, stale entries included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from attnproof import reference
from attnproof.harness.cases.recorded.batches import batch_of_build
from attnproof.harness.cases.recorded.reading import recorded_steps, recording_files
from attnproof.harness.cases.recorded.selection import RecordedReservoir
from attnproof.harness.cases.recorded.steps import Build, Called, RecordedStep, RecordingError
from attnproof.harness.cases.recorded.values import ValueProblem, metadata_of
from attnproof.harness.escaping import escape_line
from attnproof.harness.model.call import Facts, Quantity
from attnproof.harness.model.case import Batch, Case, EngineStep
from attnproof.harness.model.operation import Operation
from attnproof.harness.operations import ALL
from attnproof.harness.oracles.diagnosis import diagnose
from attnproof.harness.oracles.equality import element, first_difference
from attnproof.harness.oracles.known_mistakes import Context
from attnproof.harness.oracles.value_text import brief
from attnproof.harness.running import interrupt
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.recorded_calls import (
    Mismatch,
    lacking_fields,
    mismatch_of,
    reference_result,
)
from attnproof.harness.running.recorded_manager import ManagerRecording
from attnproof.harness.running.recorded_outcomes import Shown, recorded_outcome
from attnproof.harness.running.task.task import Outcome

_SLOTS = "build_slot_mapping"


@dataclass
class _Held:
    """The comparisons of one function."""

    compared: int = 0
    differing: int = 0
    first: tuple[Mismatch, Case, str] | None = None
    """The first difference, its case and its source."""
    refused: str = ""
    """Why the first value that cannot be used is refused, "" without one."""
    refusals: int = 0


@dataclass
class Recording:
    """One file: the number of its batches, and the comparisons of each function."""

    path: Path
    held: dict[str, _Held] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    """Calls of functions that are no operation."""
    builds: int = 0
    lacking: set[str] = field(default_factory=set)
    """Fields of recorded results that the reference's have not."""
    remarks: list[str] = field(default_factory=list)
    """What the file lacks."""
    manager: ManagerRecording | None = None
    """Calls of a KV-cache manager, None in a file of batches."""

    def note(self) -> str:
        """Return a line on the file."""
        compared = sum(held.compared for held in self.held.values())
        text = f"{escape_line(self.path.name)}: {self.builds} batches, {compared} results compared"
        if self.manager is not None:
            text = f"{escape_line(self.path.name)}: {self.manager.note()}"
        text = "; ".join([text, *self.remarks])
        if self.lacking:
            names = ", ".join(map(escape_line, sorted(self.lacking)))
            text += f"; fields that the reference's results lack, not compared: {names}"
        if not self.unknown:
            return text
        others = [f"{count} of {escape_line(name)}" for name, count in self.unknown.items()]
        return f"{text}; calls of no operation: {', '.join(others)}"


def read_recordings(
    paths: list[Path],
    count: int,
    seed: int,
    operations: list[Operation],
    progressed: Callable[[str, int], None] = lambda _file, _steps: None,
) -> tuple[list[EngineStep], list[Outcome], list[str]]:
    """Return chosen batches, an outcome for each function of each file, and notes (UsageError).

    `progressed` gets the name of a file and the number of its steps compared so far, 0 at first.
    """
    steps: list[EngineStep] = []
    outcomes: list[Outcome] = []
    notes = []
    names = {operation.name for operation in operations}
    files = _files(paths)
    for index, path in enumerate(files):
        share = count // len(files) + (index < count % len(files))
        reservoir = RecordedReservoir(share, seed)
        recording = Recording(path)
        progressed(path.name, 0)
        try:
            for done, step in enumerate(recorded_steps(path, recording.remarks), 1):
                interrupt.check()
                _take(recording, step, reservoir, names)
                progressed(path.name, done)
        except RecordingError as error:
            raise UsageError(f"--recorded {error}") from None
        steps += reservoir.choose()
        outcomes += [_outcome(recording, name, held) for name, held in recording.held.items()]
        if recording.manager is not None and "kv_manager" in names:
            outcomes.append(recording.manager.outcome(path))
            steps += recording.manager.cases(path)
        notes.append(recording.note())
    return steps, outcomes, notes


def _files(paths: list[Path]) -> list[Path]:
    """Return the files of recordings, of which some are folders (UsageError)."""
    try:
        return [file for path in paths for file in recording_files(path)]
    except RecordingError as error:
        raise UsageError(f"--recorded {error}") from None


def _take(
    recording: Recording, step: RecordedStep, reservoir: RecordedReservoir, names: set[str]
) -> None:
    """Compare one engine step, and offer its batches."""
    if step.manager is not None and step.sizes is not None:
        recording.manager = recording.manager or ManagerRecording(step.sizes)
        recording.manager.add(step.line, step.manager)
    place = f"{escape_line(recording.path.name)}#{step.line}"
    sizes = [build.block_size for build in step.builds]
    with_prompts = not any("seq_lens_cpu" in build.cam for build in step.builds)
    for group, build in enumerate(step.builds):
        recording.builds += 1
        source = f"{place},group={group}"
        held = recording.held.setdefault(_SLOTS, _Held()) if _SLOTS in names else _Held()
        try:
            batch = _compare_slots(held, build, source)
        except (ValueProblem, ValueError, TypeError) as problem:
            _refuse(held, source, problem)
            continue
        reservoir.offer(batch, source)
    for called in step.calls:
        if called.f not in ALL or called.f == _SLOTS:
            recording.unknown[called.f] = recording.unknown.get(called.f, 0) + 1
        elif called.f in names:
            held = recording.held.setdefault(called.f, _Held())
            try:
                _compare_call(recording, held, called, place, sizes, with_prompts=with_prompts)
            except (ValueProblem, ValueError, TypeError) as problem:
                _refuse(held, place, problem)


def _refuse(held: _Held, source: str, problem: Exception) -> None:
    held.refusals += 1
    held.refused = held.refused or f"{source}: {escape_line(str(problem))}"


def _compare_slots(held: _Held, build: Build, source: str) -> Batch:
    """Compare the slots of a batch with the reference's; return the batch (ValueProblem)."""
    metadata = metadata_of(build.cam)
    batch = batch_of_build(build, metadata)
    if batch.no_slots:
        expected = torch.zeros(batch.num_tokens, dtype=torch.int64)
    else:
        expected = reference.build_slot_mapping(
            metadata.query_start_loc_cpu,
            metadata.num_computed_tokens_cpu,
            metadata.block_table_tensor,
            build.block_size,
            num_padded_tokens=batch.num_tokens + batch.padded_tokens,
        )
    got = metadata.slot_mapping[: len(expected)]
    held.compared += 1
    if not torch.equal(expected, got):
        case = Case(_SLOTS, batch, {"num_padded": None, "out_spare": None})
        _keep(held, Mismatch("result", expected, got), case, source)
    return batch


def _compare_call(
    recording: Recording,
    held: _Held,
    called: Called,
    source: str,
    sizes: list[int],
    *,
    with_prompts: bool,
) -> None:
    """Compare the result of a call with the reference's (ValueProblem)."""
    if isinstance(called.result, dict) and "repr" in called.result:
        raise ValueProblem(f"the result of {called.f} was not recorded")
    arguments, expected = reference_result(called, with_prompts=with_prompts)
    held.compared += 1
    recording.lacking.update(lacking_fields(expected, called.result))
    mismatch = mismatch_of(called, arguments, expected)
    if mismatch is not None:
        _keep(held, mismatch, _case_of(called.f, arguments, sizes), source)


def _keep(held: _Held, mismatch: Mismatch, case: Case, source: str) -> None:
    held.differing += 1
    if held.first is None:
        held.first = mismatch, case, source


def _case_of(name: str, arguments: dict[str, Any], sizes: list[int]) -> Case:
    """Return the case of a call, with a batch if its metadata makes one."""
    metadata = arguments.get("common_attn_metadata")
    params = {k: v for k, v in arguments.items() if type(v) in (bool, int) and k != "block_size"}
    batch = None
    if metadata is not None:
        size = arguments.get("block_size") or (sizes[0] if sizes else 1)
        batch = batch_of_build(Build(size, {}), metadata)
    progress = arguments.get("input_batch")
    if progress is not None:
        params |= progress.params
    offsets = arguments.get("query_start_loc_p")
    if offsets is not None:
        params |= {"query_lens": offsets.diff().tolist(), "wide": False, "strided": False}
    return Case(name, batch, params)


def _outcome(recording: Recording, name: str, held: _Held) -> Outcome:
    """Return the result of one function of one file, with a finding if it differs."""
    operation = ALL[name]
    reason = ""
    if held.refusals:
        reason = (
            f"{held.refusals} of {held.compared + held.refusals} cannot be read: {held.refused}"
        )
    shown = [_shown(operation, *held.first)] if held.first else []
    return recorded_outcome(recording.path, operation, shown, held.compared, held.differing, reason)


def _shown(operation: Operation, mismatch: Mismatch, case: Case, source: str) -> Shown:
    """Return the first difference in words."""
    index = first_difference(mismatch.expected, mismatch.got)
    where = f"{mismatch.field}{'' if index is None else list(index)}"
    quantity = Quantity.SLOTS if operation.name == _SLOTS else Quantity.OTHER
    size = case.batch.block_size if case.batch else 0
    context = Context(case, Facts(result=quantity, block_size=size, tokens=case.num_tokens))
    got, expected = element(mismatch.got, index), element(mismatch.expected, index)
    return Shown(
        oracle="equality",
        root=mismatch.field,
        field=where,
        diagnosis=diagnose(context, mismatch.field, mismatch.expected, mismatch.got)[0],
        message=f"{where} is {got}, expected {expected}",
        expected=brief(mismatch.expected),
        got=brief(mismatch.got),
        case=case,
        source=source,
    )
