"""On the CPU a late copy that is read without a wait gives poison; with a wait it is right."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from attnproof.harness.cases.memory.arena import Arena, Piece
from attnproof.harness.model.call import Call
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.place import Place
from attnproof.harness.oracles.device import DeviceLostError
from attnproof.harness.oracles.late_copies import call_with_late_copies
from attnproof.optimized.dispatch import download, upload

VALUES = [3, 1, 4, 1, 5]
OPERATION = SimpleNamespace(
    call=FunctionCall(
        prepare=lambda _case, _pattern, _device: Call({}),
        outputs=lambda _call, result: {"result": result},
    )
)


def late(function):
    """Call the function with a device tensor and its mirror on the host."""
    values = np.array(VALUES)
    arena = Arena([Piece("there", values, False, (1,)), Piece("here", values, True, (1,))], 77)
    call = Call({name: arena.tensors[name] for name in ("there", "here")}, arena=arena)
    return call_with_late_copies(OPERATION, function, call, "cpu")


def read_by_name(there, _here):
    return there.to("cpu", non_blocking=True).tolist()


def read_by_keyword(there, _here):
    return there.to(device="cpu", non_blocking=True).tolist()


def read_by_position(there, _here):
    return there.to("cpu", torch.int32, True).tolist()


def read_from_buffer(there, _here):
    buffer = torch.empty(5, dtype=torch.int32)
    return buffer.copy_(there, non_blocking=True).tolist()


def read_through_numpy(there, _here):
    return there.to("cpu", non_blocking=True).numpy().tolist()


def read_what_was_computed(there, _here):
    return (there * 2 - there)[:].to("cpu", non_blocking=True).tolist()


def read_what_was_allocated(there, here):
    made = torch.zeros(5, dtype=torch.int64, device=there.device)
    return made.copy_(here).to("cpu", non_blocking=True).tolist()


def read_what_was_uploaded(there, here):
    sent = here.clone().to(there.device, non_blocking=True)
    return sent.to("cpu", non_blocking=True).tolist()


def read_after_another_wait(there, _here):
    torch.cuda.synchronize()
    return there.to("cpu", non_blocking=True).tolist()


@pytest.mark.parametrize(
    "function",
    [
        read_by_name,
        read_by_keyword,
        read_by_position,
        read_from_buffer,
        read_through_numpy,
        read_what_was_computed,
        read_what_was_allocated,
        read_what_was_uploaded,
    ],
)
def test_a_read_without_a_wait_gets_poison(function):
    made = late(function)
    assert made.copies == 1
    assert not made.may_wait
    assert made.outputs[Place("result")] == [0, 0, 0, 0, 0]


def test_a_wait_before_the_copy_does_not_help():
    assert late(read_after_another_wait).outputs[Place("result")] == [0, 0, 0, 0, 0]


def test_zeros_arrive_as_something_else():
    made = late(lambda there, _here: (there * 0).to("cpu", non_blocking=True).tolist())
    assert made.outputs[Place("result")] == [1, 1, 1, 1, 1]


def test_a_copy_that_is_returned_unread_holds_poison():
    made = late(lambda there, _here: there.to("cpu", non_blocking=True))
    assert made.outputs[Place("result")].tolist() == [0, 0, 0, 0, 0]


def test_an_error_caused_by_poison_is_recorded():
    made = late(lambda there, _here: 1 // int(there.to("cpu", non_blocking=True)[0]))
    assert made.copies == 1
    assert isinstance(made.error, ZeroDivisionError)


def waits_for_all(there, _here):
    copied = there.to("cpu", non_blocking=True)
    torch.cuda.synchronize()
    return copied.tolist()


def waits_for_the_stream(there, _here):
    copied = there.to("cpu", non_blocking=True)
    torch.cuda.current_stream(there.device).synchronize()
    return copied.tolist()


def waits_by_accident(there, _here):
    copied = there.to("cpu", non_blocking=True)
    assert int(there[0]) == 3
    return copied.tolist()


def waits_by_another_copy(there, _here):
    copied = there.to("cpu", non_blocking=True)
    there.to("cpu")
    return copied.tolist()


def waits_on_a_gpu(there, _here):
    copied = there.to("cpu", non_blocking=True)
    if there.is_cuda:
        torch.cuda.synchronize()
    return copied.tolist()


@pytest.mark.parametrize(
    "function", [waits_for_all, waits_for_the_stream, waits_by_accident, waits_by_another_copy]
)
def test_a_read_after_a_wait_gets_the_values(function):
    made = late(function)
    assert made.copies == 1
    assert made.outputs[Place("result")] == VALUES


def test_a_wait_that_only_a_gpu_reaches_is_recorded():
    made = late(waits_on_a_gpu)
    assert made.copies == 1
    assert made.may_wait


@pytest.mark.parametrize(
    "function",
    [
        lambda there, _here: there.to("cpu").tolist(),
        lambda there, _here: there.cpu().tolist(),
        lambda _there, here: here.to("cpu", non_blocking=True).tolist(),
        lambda _there, here: torch.empty(5, dtype=torch.int64).copy_(here, True).tolist(),
        lambda there, here: there.copy_(here, non_blocking=True).tolist(),
        lambda there, here: upload(here.clone(), there.device).tolist(),
        lambda there, _here: download(there).tolist(),
        lambda there, here: download(upload(here.clone(), there.device)).tolist(),
    ],
)
def test_other_copies_are_not_late(function):
    made = late(function)
    assert made.copies == 0
    assert made.outputs[Place("result")] == VALUES


def writes_the_source_of_a_copy(there, here):
    there.copy_(here, non_blocking=True)
    here.zero_()
    return there


def writes_the_source_through_numpy(there, here):
    sent = here.to(there.device, non_blocking=True)
    here.numpy()[2] = 7
    return sent


def writes_the_result_of_a_copy(there, here):
    sent = here.to(there.device, non_blocking=True)
    sent[2] = 7
    return sent


def writes_the_source_after_a_wait(there, here):
    there.copy_(here, non_blocking=True)
    torch.cuda.current_stream().synchronize()
    here.zero_()
    return there


def writes_the_source_of_a_blocking_copy(there, here):
    there.copy_(here)
    here.zero_()
    return there


@pytest.mark.parametrize(
    ("function", "changed"),
    [
        (writes_the_source_of_a_copy, True),
        (writes_the_source_through_numpy, True),
        (writes_the_result_of_a_copy, False),
        (writes_the_source_after_a_wait, False),
        (writes_the_source_of_a_blocking_copy, False),
        (lambda there, here: upload(here, there.device), False),
    ],
)
def test_the_source_of_a_copy_to_the_device_must_not_change_before_a_wait(function, changed):
    assert late(function).source_changed is changed


def test_torch_is_unpatched_after_the_call():
    before = torch.cuda.synchronize
    late(read_by_name)
    assert torch.cuda.synchronize is before
    assert torch.arange(3).to("cpu", non_blocking=True).tolist() == [0, 1, 2]


def test_a_device_that_is_lost_in_the_call_raises_device_lost_error(monkeypatch):
    def lost(_device=None):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda _cycles: None)
    with pytest.raises(DeviceLostError, match="illegal memory access"):
        call_with_late_copies(OPERATION, lambda: 7, Call({}), "cuda")
