"""Operations, batches and cases from the names and paths on the command line."""

from __future__ import annotations

import fnmatch
from pathlib import Path

from msgspec import structs

from attnproof.harness.cases.steps.from_trace import batches_from_trace
from attnproof.harness.cases.steps.sampler import batches_from_sampler
from attnproof.harness.cases.traces.formats import TraceError
from attnproof.harness.cases.variation.altered_calls import has_fault
from attnproof.harness.escaping import escape_line
from attnproof.harness.model.candidate import OPTIMIZED, REFERENCE, Candidate
from attnproof.harness.model.case import EngineStep, Sourced
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.text import near_hint
from attnproof.harness.model.verdict import ENGINE, STRICT, Kind
from attnproof.harness.operations import ALL
from attnproof.harness.report.shared.wording import listed, many
from attnproof.harness.running.cases import CaseError, read_corpus
from attnproof.harness.running.errors import UsageError
from attnproof.harness.verbs.options import CallOptions

_CONTRACTS = {"engine": ENGINE, "strict": STRICT}
_FEW = 8
"""Most operations whose name contains an unknown one, to name all of them."""
_NAMED_FILES = 20
"""Maximum number of files that a note names; further ones are counted."""


def pick_operations(names: str) -> list[Operation]:
    """Return the operations of a comma-separated list of names and patterns, all for "".

    Raise UsageError.
    """
    if not names:
        return list(ALL.values())
    picked: list[str] = []
    for name in (part.strip() for part in names.split(",")):
        if not name:
            raise UsageError(f"no operation '' in {names!r}: drop a comma")
        matching = fnmatch.filter(ALL, name)
        if not matching:
            raise UsageError(f"no operation {name!r}: {_hint(name)}")
        picked += matching
    return [ALL[name] for name in dict.fromkeys(picked)]


def _hint(name: str) -> str:
    """Return the nearest operations of an unknown name or pattern, or how to list them."""
    containing = [known for known in ALL if name.replace("_", "") in known.replace("_", "")]
    if containing and len(containing) <= _FEW:
        return f"did you mean {' or '.join(containing)}?"
    return near_hint(name, ALL, 0.45).strip() or "`attnproof list` prints all names"


def with_contract(candidates: list[Candidate], options: CallOptions) -> list[Candidate]:
    """Return the candidates with the classes of findings that fail them. Raise UsageError.

    Built-in candidates fail on every class.
    """
    if options.contract not in _CONTRACTS:
        hint = near_hint(options.contract, _CONTRACTS)
        known = " or ".join(_CONTRACTS)
        raise UsageError(f"--contract is {options.contract!r}: {hint}expected {known}")
    judged = _CONTRACTS[options.contract]
    if options.fail_on:
        names = [part.strip() for part in options.fail_on.split(",")]
        for name in names:
            if name not in list(Kind):
                hint, known = near_hint(name, Kind), ", ".join(Kind)
                raise UsageError(f"--fail-on names {name!r}: {hint}expected classes of {known}")
        judged = frozenset(map(Kind, names))
    own = (OPTIMIZED, REFERENCE)
    return [c if c.target in own else structs.replace(c, judged=judged) for c in candidates]


def pick_steps(traces: list[Path], count: int, seed: int) -> tuple[list[EngineStep], list[str]]:
    """Return `count` batches with their sources, and a note on each trace. Raise UsageError.

    Without a trace the batches come from sampled requests.
    """
    if not count:
        return [], ["trace steps: --steps is 0"]
    if not traces:
        sampled = batches_from_sampler(count, seed)
        return list(sampled.batches), [sampled.summary]
    steps: list[EngineStep] = []
    notes = []
    for index, path in enumerate(traces):
        share = count // len(traces) + (index < count % len(traces))
        try:
            chosen = batches_from_trace(path, share, seed)
        except TraceError as error:
            raise UsageError(str(error)) from None
        steps += chosen.batches
        notes.append(chosen.summary)
    return steps, notes


def pick_corpus(folder: Path | None) -> list[Sourced]:
    """Return the cases in a folder and its subfolders, none for None. Raise UsageError."""
    if folder is None:
        return []
    try:
        cases = read_corpus(folder)
    except CaseError as error:
        raise UsageError(str(error)) from None
    return [structs.replace(entry, source=escape_line(entry.source)) for entry in cases]


def unused_corpus(
    corpus: list[Sourced], operations: list[Operation], candidates: list[Candidate]
) -> list[str]:
    """Return a note on the cases of a corpus that this run leaves out, with their files."""
    by_name = {operation.name: operation for operation in operations}
    unasked = [entry for entry in corpus if entry.case.operation not in by_name]
    notes = [_unused(unasked, corpus, "their operations are not among those of --ops")]
    asked = [entry for entry in corpus if entry.case.operation in by_name and entry.case.fault]
    for device in dict.fromkeys(candidate.device for candidate in candidates):
        absent = [
            entry
            for entry in asked
            if not has_fault(by_name[entry.case.operation], entry.case.fault, device)
        ]
        notes.append(_unused(absent, corpus, f"their faults do not exist on the device {device}"))
    return [note for note in notes if note]


def _unused(unused: list[Sourced], corpus: list[Sourced], why: str) -> str:
    if not unused:
        return ""
    files = listed([f"{entry.source} ({entry.case.operation})" for entry in unused], _NAMED_FILES)
    return f"{len(unused):,} of {many(len(corpus), 'case')} of the corpus: {why}: {files}"
