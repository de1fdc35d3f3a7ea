"""Failures of a candidate that its process goes on after."""

from __future__ import annotations

from attnproof.harness.model.verdict import PROCESS, Failure

PRINTS = Failure(
    oracle=PROCESS,
    field="",
    diagnosis="writes to standard output",
    message="the candidate wrote to standard output",
)
FORKS = Failure(
    oracle=PROCESS,
    field="forks",
    diagnosis="forks a process that returns from the call",
    message="the candidate forked a process that returned from the call as well",
    expected="one return from each call",
    got="two",
)
BREAKS = Failure(
    oracle=PROCESS,
    field="breaks",
    diagnosis="breaks its process",
    message="the harness fails in the candidate's process, and not in the reference's",
    expected="a process in which other code runs",
)
