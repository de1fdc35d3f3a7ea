"""Errors that end an invocation: each is one line for the user and an exit code."""

from __future__ import annotations

VERIFIED, MISMATCH, USAGE, INCOMPLETE, SLOWER, INFRASTRUCTURE = 0, 1, 2, 3, 4, 5


class AttnproofError(Exception):
    """Shown on stderr without a traceback; `exit_code` is the process's."""

    exit_code = INFRASTRUCTURE


class UsageError(AttnproofError):
    """The user asked for something that is not there."""

    exit_code = USAGE


class InfrastructureError(AttnproofError):
    """Something that the run needs does not work: a full disk, a process that cannot start."""
