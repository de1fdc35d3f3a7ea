"""The side of a report that is in the candidate's process: make the calls, and write them down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attnproof.harness.model.call import Call
from attnproof.harness.model.text import utf8
from attnproof.harness.oracles import cost
from attnproof.harness.oracles.attempt import Attempt
from attnproof.harness.oracles.later_calls import Kept, Overwritten
from attnproof.harness.oracles.launches import Launches
from attnproof.harness.oracles.overlap import overlapped
from attnproof.harness.oracles.trial import Trial
from attnproof.harness.phases import Phase, counted
from attnproof.harness.running.exchange.memory import SharedMemory
from attnproof.harness.running.exchange.reports import AttemptData, LateData, error_data
from attnproof.harness.running.exchange.values import Writer

_MOST_LOG = 20_000
"""Most characters of a traceback."""
_MORE_CALLS = 3
"""Further calls before an earlier result is looked at again: buffers may take turns."""


class Observer:
    """Maker of the report on one case, in the candidate's process."""

    def __init__(
        self, trial: Trial, memory: SharedMemory, end_forked: Callable[[], None] = lambda: None
    ) -> None:
        """`end_forked` ends this process if it is not the one that was asked."""
        self._trial = trial
        self._memory = memory
        self._end_forked = end_forked

    @counted(Phase.OBSERVE)
    def observe(self, *, once: bool, repeated: bool, poisoned: bool) -> dict[str, Any]:
        """Make the calls that the oracles judge; return the fields of the report.

        With `once` only the first call is made, without `repeated` not the second one, and
        without `poisoned` not the one with the other poison pattern.
        """
        trial, report = self._trial, self._empty_report()
        ended = trial.first.error is not None or trial.first.malformed
        judged = not (once or trial.case.fault or ended)
        again = trial.again if judged and repeated else None
        late = trial.late if judged and again and not (again.error or again.malformed) else None
        self._end_forked()
        # To format a traceback takes longer than a call with malformed input.
        logged = once or not trial.case.fault
        # Now, as the calls below may change memory that the results share.
        report["first"] = self._attempt(trial.first, logged=logged)
        if again is not None:
            report["again"] = self._attempt(again, judged_inputs=False)
        if late is not None:
            late_attempt = Attempt(Call({}), outputs=late.outputs, error=late.error)
            report["late"] = LateData(
                late.copies, late.may_wait, late.source_changed, self._attempt(late_attempt)
            )
        if poisoned and (judged or (trial.case.fault and not once)):
            poisoned_attempt = trial.poisoned
            self._end_forked()
            report["poisoned"] = self._attempt(poisoned_attempt, logged=logged)
        if judged and cost.checks(trial):
            raised = trial.unwaited.error  # all that is judged of it
            report["unwaited"] = self._attempt(Attempt(Call({}), error=raised))
        return report | {"used": self._memory.used}

    @counted(Phase.OBSERVE)
    def observe_after(self, earlier: Trial, *, in_place: bool) -> dict[str, Any]:
        """Make the call of `earlier` and then those of the trial; return the report's fields.

        With `in_place` the second call gets the tensors, dicts and lists of the first one, filled
        anew: results of the first may be views of them.
        """
        report = self._empty_report()
        kept = Kept(earlier)
        self._trial.earlier = earlier.first.call if in_place else None
        first = self._trial.first
        if not in_place:
            self._trial.repeat(_MORE_CALLS)
        overwritten = None if in_place else kept.overwritten()
        self._end_forked()
        report["first"] = self._attempt(first)
        return report | _overwritten(overwritten) | {"used": self._memory.used}

    @counted(Phase.OBSERVE)
    def observe_within(self, other: Trial) -> dict[str, Any]:
        """Make the trial's call, then once more with that of `other` in it; return the fields."""
        report = self._empty_report()
        first = self._trial.first
        overwritten = overlapped(self._trial, other)
        self._end_forked()
        report["first"] = self._attempt(first)
        return report | _overwritten(overwritten) | {"used": self._memory.used}

    @counted(Phase.OBSERVE)
    def observe_steps(self, earlier: Sequence[Trial], package: str = "") -> dict[str, Any]:
        """Make the calls of engine steps, of which the trial's is the last; return the fields.

        Kernels of `package` are left out.
        """
        report, launches = self._empty_report(), Launches(package)
        with launches.noted():
            for step, trial in enumerate((*earlier, self._trial)):
                launches.end_step(step, trial.first.call.arena)
        self._end_forked()
        report["first"] = self._attempt(self._trial.first)
        report["versions"] = list(launches.versions.values())
        return report | {"used": self._memory.used}

    def _empty_report(self) -> dict[str, Any]:
        self._memory.clear()
        calls = dict.fromkeys(("again", "poisoned", "unwaited", "late"))
        return {**calls, "case_id": self._trial.case.id}

    def _attempt(
        self, attempt: Attempt, *, logged: bool = True, judged_inputs: bool = True
    ) -> AttemptData:
        arena = attempt.call.arena.buffers if attempt.call.arena and judged_inputs else []
        writer = Writer(arena)
        malformed, before = attempt.malformed, self._memory.used
        outputs = attempt.returned or attempt.outputs
        returned = [(writer.write(key), writer.write(value)) for key, value in outputs.items()]
        observed = writer.write(attempt.call.observed)
        try:
            blocks, tensors = writer.blocks(self._memory)
        except MemoryError:
            self._memory.clear(before)
            malformed, returned = "more bytes than can be judged", []
            blocks, tensors = Writer(arena).blocks(self._memory)
        return AttemptData(
            len(arena),
            blocks,
            tensors,
            returned,
            None if attempt.error is None else error_data(attempt.error),
            utf8(malformed),
            utf8(attempt.log)[-_MOST_LOG:] if logged else "",
            attempt.stray_writes,
            attempt.unwaited_copies,
            attempt.changes,
            observed,
            utf8(attempt.modified),
            utf8(attempt.shared),
            tuple(map(utf8, attempt.left_out)),
            attempt.restated,
        )


def _overwritten(overwritten: Overwritten | None) -> dict[str, Any]:
    """Return the field of the report for a result that another call has changed, if any."""
    if overwritten is None:
        return {}
    place, *texts = overwritten
    return {"overwritten": (Writer([]).write(place), *map(utf8, texts))}
