"""Judge the mutants that survive in a built-in candidate's first lane in its other lanes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.files import DamagedError, read_json
from attnproof.harness.running.candidates import BUILT_IN
from attnproof.harness.strength.mutants.mutant import KILLED, Result
from attnproof.harness.strength.mutants.queue import Planned
from attnproof.harness.verbs.messages import say
from attnproof.harness.verbs.options import MutantsOptions


class _Record(msgspec.Struct):
    """The part of mutants.json that is read."""

    results: list[Result]


def judged_elsewhere(
    results: list[Result], planned: list[Planned], candidate: Candidate, options: MutantsOptions
) -> list[Result]:
    """Return the results, with those of other lanes for survivors.

    A later result counts if it kills the mutant, or if no case had run its line before.

    Each lane is a process of its own, as numba's and Triton's modes are chosen at their import.
    """
    if options.only or candidate.name != BUILT_IN[0].name:
        return results
    by_id = {result.mutant.id: result for result in results}
    operations = {mutant.id: names for mutant, names in planned}
    for other in BUILT_IN[1:]:
        left = [result for result in by_id.values() if result.fate == "survived"]
        if not left:
            break
        say(f"{len(left):,} survivors: {other.name}")
        names = {name for result in left for name in operations[result.mutant.id]}
        ids = [result.mutant.id for result in left]
        for result in _judged(other, ids, names, options):
            if result.fate in KILLED or (result.cases and not by_id[result.mutant.id].cases):
                by_id[result.mutant.id] = result
    return list(by_id.values())


def _judged(
    candidate: Candidate, ids: list[str], operations: set[str], options: MutantsOptions
) -> list[Result]:
    folder = options.out / candidate.name
    folder.mkdir(parents=True, exist_ok=True)
    only = folder / "only.txt"
    only.write_text("\n".join(ids) + "\n", encoding="utf-8")
    report = folder / "mutants.json"
    report.unlink(missing_ok=True)
    numbers = {"examples", "budget", "seed", "jobs", "deep"}
    command = [sys.executable, "-m", "attnproof", "mutants", "--candidate", candidate.name]
    command += ["--only", str(only), "--out", str(folder), "--ops", ",".join(sorted(operations))]
    flags = {name: getattr(options, name) for name in sorted(numbers)}
    for name, value in flags.items():
        command += [f"--{name}", str(value)] if value is not None else []
    subprocess.run([*command, *["--restart"] * options.restart], check=False)
    return _results(report)


def _results(file: Path) -> list[Result]:
    """Return the results of a lane, none if it could not be judged."""
    try:
        record: _Record = read_json(file, _Record)
    except (OSError, DamagedError):
        return []
    return record.results
