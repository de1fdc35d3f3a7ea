"""Errors that end an invocation, and exit codes; each error is one line for the user."""

from __future__ import annotations

VERIFIED, MISMATCH, USAGE, INCOMPLETE, SLOWER, INFRASTRUCTURE = 0, 1, 2, 3, 4, 5


class AttnproofError(Exception):
    """An error printed to stderr without a traceback; `exit_code` is that of the process."""

    exit_code = INFRASTRUCTURE


class UsageError(AttnproofError):
    """A mistake in the command line, such as an unknown name."""

    exit_code = USAGE


class InfrastructureError(AttnproofError):
    """A failure of the machine: a full disk, a process that cannot start, a coarse clock."""
