"""Known deviations of engines that a finding of another candidate shows too."""

from __future__ import annotations

from functools import lru_cache

from attnproof.harness.model.candidate import Candidate, device_type
from attnproof.harness.model.case import Case
from attnproof.harness.model.deviation import Deviation
from attnproof.harness.model.verdict import Failure
from attnproof.harness.running.engines import engine_of, title_of
from attnproof.harness.running.shipped import shipped_list, shipped_names
from attnproof.harness.running.task.deviations import (
    DeviationError,
    entries_of,
    explains,
    is_for,
)


def engine_sentence(candidate: Candidate, case: Case, failure: Failure) -> str:
    """Return the engine whose known deviation explains the failure, "" without one.

    It is a release of the candidate's interface if one has it, else the latest of an engine.
    """
    own = engine_of(candidate.target)
    lanes = {candidate.lane, device_type(candidate.lane)}
    names = sorted(shipped_names(), key=lambda name: name.replace(":", "-") != candidate.interface)
    for name in names:
        if own is not None and name.startswith(own.package):
            continue
        path, release = shipped_list(name)
        for place, deviation in _entries(path):
            here = not deviation.lanes or lanes & {*deviation.lanes}
            if here and _fits(deviation, case, failure) and is_for(deviation, release, place):
                title = f"{title_of(name)} {name.partition(':')[2]}"
                return f"{title} does this too ({deviation.id}): --deviations {name}"
    return ""


_entries = lru_cache(entries_of)


def _fits(deviation: Deviation, case: Case, failure: Failure) -> bool:
    try:
        return explains(deviation, case, failure)
    except DeviationError:  # a condition that this case has no values for
        return False
