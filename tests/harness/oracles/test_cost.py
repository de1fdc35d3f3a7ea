"""The cost oracle without a GPU: its failures for the errors of a call that may not wait."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch

from attnproof.harness.operations import ALL
from attnproof.harness.oracles import cost
from attnproof.harness.oracles.device import no_waiting, wait_message


def raised(error, cause=None):
    try:
        try:
            raise cause or error
        except RuntimeError:
            raise error from cause
    except Exception as made:  # with its chain
        return made


WAIT = RuntimeError("called a synchronizing CUDA operation")


def judged(error):
    operation = ALL["slice_query_start_locs"]
    case = next(case for _, case in operation.inputs.boundaries())
    unwaited = SimpleNamespace(error=error, log="")
    parts = {"function": len, "reference": None, "device": "cuda"}
    parts |= {"unwaited": unwaited, "of_reference": False}
    return list(cost.judge(SimpleNamespace(operation=operation, case=case, **parts)))


@pytest.mark.parametrize("error", [WAIT, raised(ValueError("no lengths"), WAIT)])
def test_a_wait_is_reported_even_if_another_error_follows_from_it(error):
    assert wait_message(error)
    [failure] = judged(error)
    assert failure.diagnosis == "synchronises host and device"
    assert "synchronizing CUDA operation" in failure.got


def test_a_call_that_fails_without_a_wait_is_a_failure():
    assert not wait_message(ValueError("no lengths"))
    [failure] = judged(ValueError("no lengths"))
    assert failure.diagnosis == "fails where a wait is an error"
    assert "no lengths" in failure.message


def test_a_call_without_a_wait_is_no_failure():
    assert not judged(None)


def test_the_warning_about_the_prototype_mode_is_ignored(monkeypatch):
    modes = []

    def set_mode(mode):
        if not modes:  # as PyTorch: once in a process
            warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=2)
        modes.append(mode)

    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    with warnings.catch_warnings(action="error"), no_waiting():
        pass
    assert modes == ["error", 0]
