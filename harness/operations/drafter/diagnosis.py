"""Diagnosis of wrong slots of a drafter."""

from __future__ import annotations

from typing import Any

import torch


def diagnose_slots(expected: Any, got: Any) -> str:
    """Return the diagnosis of wrong slots, "" if the general one is as good."""
    if not isinstance(got, torch.Tensor) or got.shape != expected.shape:
        return ""
    wrong = expected != got
    if (expected[wrong] == -1).all():
        return "a slot for a token that must have none"
    if (got[wrong] == -1).all():
        return "token without its slot"
    return ""
