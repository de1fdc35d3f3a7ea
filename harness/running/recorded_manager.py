"""Hold the calls of a live KV-cache manager against the ledger of SPEC.md section 16.

A wrong answer leaves the state unknown, so a file is judged up to its first one.
"""

from __future__ import annotations

from pathlib import Path

from attnproof.harness.cases.recorded.values import ValueProblem
from attnproof.harness.escaping import escape_line
from attnproof.harness.model.case import EngineStep
from attnproof.harness.model.place import place_of
from attnproof.harness.model.verdict import CONSUMER
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations import ALL
from attnproof.harness.operations.kv_manager.recorded import RecordedCalls, RecordedLedger
from attnproof.harness.operations.kv_manager.recorded_case import case_of_recording, fits_a_case
from attnproof.harness.operations.kv_manager.steps import NAME
from attnproof.harness.recorder.schema import Manager, ManagerStep
from attnproof.harness.running import interrupt
from attnproof.harness.running.recorded_outcomes import Shown, recorded_outcome
from attnproof.harness.running.task.task import Outcome

_MOST_CALLS = 300
"""Most calls of a case for candidates, the first of a recording."""


class ManagerRecording:
    """The calls of one file."""

    def __init__(self, sizes: Manager) -> None:
        self._sizes = sizes
        self._recorded = RecordedCalls()
        self._refused = ""
        """Why the rest of the file cannot be judged, "" without a reason."""
        self._steps = 0

    def add(self, frame: int, step: ManagerStep) -> None:
        """Add the calls of an engine step, unless one before it could not be read."""
        self._steps += 1
        if not self._refused:
            try:
                self._recorded.add(frame, step)
            except ValueProblem as problem:
                self._refused = f"frame {frame}: {problem}"

    def note(self) -> str:
        """Return a clause on the calls."""
        return f"{len(self._recorded.calls)} calls of a KV-cache manager in {self._steps} steps"

    def outcome(self, path: Path) -> Outcome:
        """Judge the answers of the manager."""
        calls, shown, refused = self._recorded.calls, list[Shown](), self._refused
        compared = len(calls)
        try:
            ledger = RecordedLedger(self._sizes, self._recorded)
            violations = list(ledger.violations(interrupt.check))
            if violations:
                index, violation = violations[0]
                compared = index + 1
                shown = [self._shown(path, index, violation)]
        except ValueProblem as problem:
            refused, compared = str(problem), 0
        except (LookupError, TypeError) as error:  # an answer or a number that a call lacks
            refused, compared = f"a call is not whole: {error!r}", 0
        refused = refused or ("" if calls else "no call of the manager")
        reason = refused and f"cannot be judged to the end: {escape_line(refused)}"
        return recorded_outcome(path, ALL[NAME], shown, compared, len(shown), reason)

    def cases(self, path: Path) -> list[EngineStep]:
        """Return the first calls as a case for candidates, nothing of a manager too large."""
        try:
            if not fits_a_case(self._sizes):
                return []
        except ValueProblem:
            return []  # the outcome says why
        case = case_of_recording(self._sizes, self._recorded, _MOST_CALLS)
        return [EngineStep(None, f"{escape_line(path.name)}#calls", "recorded", case)]

    def _shown(self, path: Path, index: int, violation: Violation) -> Shown:
        call = self._recorded.calls[index]
        place = place_of(violation.field)
        where = (
            f"{call.call.do} of request {call.call.request}" if call.call.request else call.call.do
        )
        detail = f": {violation.detail}" if violation.detail else ""
        case = case_of_recording(self._sizes, self._recorded, index + 1)
        return Shown(
            oracle=CONSUMER,
            root=place.root,
            field=f"[{index}].{place.root}",
            diagnosis=f"{place.root} {violation.text}",
            message=f"{where}: {place.root} {violation.text}{detail}",
            expected="",
            got=violation.detail,
            case=case,
            source=f"{escape_line(path.name)}#{call.frame}",
        )
