"""Options of a run."""

from __future__ import annotations

import msgspec

from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.operation import Operation
from attnproof.harness.running.task.root_causes import RootCause
from attnproof.harness.running.task.shrink import SHRINK_SECONDS


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a run, resolved from the command line."""

    examples: int = 207
    """Different cases that Hypothesis draws for each operation and candidate."""
    seconds: float = 0.0
    """Further fuzzing for each operation and candidate, in seconds."""
    seed: int = 0
    vary: bool = True
    """True to run cases of several critical features, variations of other cases and altered
    values."""
    timeout_s: float = 20.0
    """Timeout of one case, all calls of the candidate together, in seconds of a `Stopwatch`; longer
    if the reference takes long."""
    shrink_seconds: float = SHRINK_SECONDS
    """Time limit of shrinking one finding: once for Hypothesis, and once for `shrink`."""
    memory_bytes: int = 4 << 30
    """Bytes that a candidate may allocate beyond those of its process before the first call."""
    examples_db: str = ".attnproof/examples"
    """Folder of Hypothesis's example database, "" to save nothing."""
    costly_share: int = 8
    """If cases are costly (`is_costly`), one in this many drawn cases is run, and one in this
    many cases is called twice on equal input."""
    sparse: bool = False
    """True to call a candidate in each case either twice on equal input or with another poison
    pattern, not both: in runs of many operations."""
    usual_depth: bool = True
    """True if as many cases as usual are run: only then is an absent known deviation stale."""
    minimise_known: bool = True
    """True to shrink the smallest case of each known deviation; `bench` skips this."""
    boundaries: bool = True
    """True to run boundaries and their faults, which are the same with every seed."""
    known: tuple[RootCause, ...] = ()
    """Root causes that earlier examinations found: their failures are counted, not shrunk."""


def is_costly(operation: Operation, candidate: Candidate) -> bool:
    """True if few drawn cases are run unless a run is thorough.

    A case takes tens of milliseconds in the interpreter and in a forked process. `optimized`
    without its checks is the code that is judged with them too.
    """
    return candidate.lane == "interpreter" or operation.call.isolated or not candidate.checked
