"""Exact costs of one call: the same each time and on every machine, so that CI can check them.

Counts come from PyTorch's dispatcher; on a GPU the profiler adds kernel launches and waits
of the host. Memory that numpy or compiled loops allocate counts only if a tensor uses it.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attnproof.harness.model.call import Thunk
from attnproof.harness.model.candidate import Lane
from attnproof.harness.model.timing import Costs

_COPIES = frozenset(
    (
        torch.ops.aten.copy_,
        torch.ops.aten._to_copy,
        torch.ops.aten.clone,
        torch.ops.aten.lift_fresh_copy,
    )
)
_LIFTS = frozenset((torch.ops.aten.lift_fresh, torch.ops.aten.lift))
"""Operators that make a tensor of a list or an array: their argument's memory is new."""
_RANGE = "attnproof: the call"
_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")
"""Functions of the CUDA runtime that return when the device has caught up."""
_NO_KERNELS = ("Memcpy", "Memset", _RANGE)


def count(make: Callable[[], Thunk], lane: Lane) -> Costs:
    """Return the costs of one call that `make` returns.

    Two calls precede it, so that compilation and caches are not counted. `make` makes each
    call anew, as a call may be usable only once.
    """
    watch = _Watch()
    thunks = [make() for _ in range(3)]  # all alive, so that no address is used again
    for thunk in thunks:
        watch.costs = _NOTHING
        with watch:
            watch.held.append(thunk())
    if lane != "cuda":
        return watch.costs
    launches, syncs = _on_device(make())
    return msgspec.structs.replace(watch.costs, launches=launches, syncs=syncs)


_NOTHING = Costs(allocations=0, allocated_bytes=0, dispatches=0, copies=0, copied_bytes=0)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counter of dispatched operators and of the memory that they allocate."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.costs = _NOTHING
        self.held: list[Any] = []
        """Keeps results alive: freed memory that is allocated again would look old."""
        self._known: list[tuple[int, int]] = []
        """First address and end of each storage seen so far, ascending."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: to skip it, torch would import its compiler first, which takes seconds."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operator; count it."""
        kind = func.overloadpacket
        if kind not in _LIFTS:
            for tensor in _tensors((args, kwargs)):
                self._is_new(tensor)
        result = func(*args, **(kwargs or {}))
        storages = [tensor.untyped_storage() for tensor in _tensors(result) if self._is_new(tensor)]
        copied = [tensor.nbytes for tensor in _tensors(result)] if kind in _COPIES else []
        before = self.costs
        self.costs = msgspec.structs.replace(
            before,
            allocations=before.allocations + len(storages),
            allocated_bytes=before.allocated_bytes + sum(storage.nbytes() for storage in storages),
            dispatches=before.dispatches + 1,
            copies=before.copies + len(copied),
            copied_bytes=before.copied_bytes + sum(copied),
        )
        return result

    def _is_new(self, tensor: torch.Tensor) -> bool:
        """True if the tensor's memory was not seen before; it counts as seen afterwards."""
        storage = tensor.untyped_storage()
        start, size = storage.data_ptr(), storage.nbytes()
        place = bisect(self._known, (start, math.inf))
        if size == 0 or (place and start < self._known[place - 1][1]):
            return False
        self._known.insert(place, (start, start + size))
        self.held.append(storage)  # holding the tensor itself would dispatch a detach
        return True


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _on_device(thunk: Thunk) -> tuple[int | None, int | None]:
    """Return kernel launches and waits of one call; None if the profiler supports no GPU."""
    from torch.profiler import ProfilerActivity, profile, record_function, supported_activities

    if ProfilerActivity.CUDA not in supported_activities():  # type: ignore[no-untyped-call]
        return None, None
    torch.cuda.synchronize()
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, acc_events=True) as seen:  # else it warns
        with record_function(_RANGE):
            thunk()
        torch.cuda.synchronize()
    return launches_and_waits(seen.events() or ())


def launches_and_waits(events: Iterable[Any]) -> tuple[int, int]:
    """Return the kernels on the device, and the host's waits inside the call.

    All kernels count: they run after the host has left the range of the call. The wait that
    ends the measurement comes after the call and does not count.
    """
    events = list(events)
    on_device = [event for event in events if event.device_type.name == "CUDA"]
    kernels = [event for event in on_device if not event.name.startswith(_NO_KERNELS)]
    on_host = [event for event in events if event.device_type.name != "CUDA"]
    calls = [event.time_range for event in on_host if event.name == _RANGE]
    waits = [
        event
        for event in on_host
        if event.name in _WAITS
        and any(call.start <= event.time_range.start <= call.end for call in calls)
    ]
    return len(kernels), len(waits)
