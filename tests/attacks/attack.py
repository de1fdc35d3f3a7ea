"""A candidate that attacks a promise of the harness, as the body of one function."""

from __future__ import annotations

from textwrap import dedent, indent
from typing import NamedTuple

PASS, FAIL, UNVERIFIED = "PASS", "FAIL", "UNVERIFIED"
_TEMPLATE = """\
import os, sys, signal, socket, subprocess, struct, threading, time, ctypes, gc, mmap, resource
import numpy as np, torch
from attnproof.reference import {operation} as good
n = 0
{before}
def {operation}(*a, **k):
    global n
    n += 1
    r = good(*a, **k)
    hit = len(r) == 3 if torch.is_tensor(r) else not a[0]
{body}
    return r
"""


class Attack(NamedTuple):
    """A candidate and the ending that the harness owes its user."""

    name: str
    verdict: str
    words: str
    """Words of the finding or the reason; alternatives are separated by `|`."""
    body: str
    """Statements of the function, where `r` is the right result, `hit` is true of a few inputs
    and `n` counts the calls."""
    before: str = ""
    """Statements of the module."""

    def source(self, operation: str) -> str:
        """Return the candidate's file."""
        body = indent(dedent(self.body).strip(), "    ")
        return _TEMPLATE.format(operation=operation, before=dedent(self.before), body=body)
