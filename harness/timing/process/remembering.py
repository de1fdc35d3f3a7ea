"""Candidates that answer repeated inputs from memory: their times hold for such inputs only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle, islice, pairwise
from statistics import quantiles

import torch

from attnproof.harness.model.candidate import Lane
from attnproof.harness.timing.process.clocks import host_clock, time_calls
from attnproof.harness.timing.process.comparison import TimedCall, WrongResultError

VALUES = 9
"""Inputs with values of their own, of which in turn one is known and the next one new."""
_FEWEST = 5
"""Least number of inputs: quartiles of fewer times say nothing."""
_USES = 12
"""Calls on known values before the timed one: answers may be remembered from a later use on."""
_INPUTS = 2
"""Inputs of these calls, which take turns: making large ones takes a hundred times a call."""
_RATIO = 2.0
"""Time of a call on new values, relative to known ones, from which these are remembered."""
_LEAST_NS = 2000.0
"""Least difference in nanoseconds: an input is not read and looked up in less."""


def remembering(
    name: str, makers: Sequence[Callable[[], TimedCall]], lane: Lane, *, single_use: bool = False
) -> str:
    """Return how much faster a candidate is on values that it has had, "" if it is not.

    Each maker returns calls on new inputs, equal among themselves; no earlier call had their
    values. Raises WrongResultError, and whatever the candidate raises.
    """
    if len(makers) < _FEWEST:
        return ""
    known, new = [], []
    for before, after in pairwise(makers):
        used = [before() for _ in range(_USES if single_use else _INPUTS)]
        for call in islice(cycle(used), _USES):
            call.run()
        # The call on known values comes first: the second one has the warmer caches.
        pair = [before(), after()]
        for call in pair:
            call.touch()
            call.read_fields()
        times = [_time(name, call, lane) for call in pair]
        known.append(times[0])
        new.append(times[1])
    # Quartiles, as single calls may be interrupted.
    slow, fast = quantiles(known)[2], quantiles(new)[0]
    if fast < _RATIO * slow or fast - slow < max(_LEAST_NS, 2 * host_clock().resolution_ns):
        return ""
    return (
        f"answers repeated inputs from memory: three in four calls take more than "
        f"{fast / 1e3:.3g} µs on new values, and less than {slow / 1e3:.3g} µs on known ones"
    )


def _time(name: str, call: TimedCall, lane: Lane) -> float:
    if lane == "cuda":
        torch.cuda.synchronize()
    taken, (result,) = time_calls([call.run], [0])
    if lane == "cuda":
        torch.cuda.synchronize()
    mismatch = call.mismatch(result)
    if mismatch is not None:
        raise WrongResultError(name, mismatch)
    return taken
