"""Exact costs of one call: the same each time and on every machine, so that they can be gated.

On the CPU PyTorch's dispatcher is watched; on a GPU its profiler tells too which kernels
were launched and where the host waited. What numpy and compiled loops allocate shows only
where a tensor is made of it.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attnproof.harness.model.candidate import Lane
from attnproof.harness.model.timing import Costs
from attnproof.harness.timing.process.clocks import Thunk

_COPIES = frozenset(
    (
        torch.ops.aten.copy_,
        torch.ops.aten._to_copy,
        torch.ops.aten.clone,
        torch.ops.aten.lift_fresh_copy,
    )
)
_LIFTS = frozenset((torch.ops.aten.lift_fresh, torch.ops.aten.lift))
"""How a tensor made of a list or an array shows: its memory is new although it is an argument."""
_RANGE = "attnproof: the call"
_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")
"""Functions of the CUDA runtime that return when the device has caught up."""
_NO_KERNELS = ("Memcpy", "Memset", _RANGE)


def count(make: Callable[[], Thunk], lane: Lane) -> Costs:
    """Costs of one call of what `make` makes, in the state that earlier calls leave behind.

    Two calls go before it: what is compiled, cached or kept for later is not counted.
    Each call is a fresh one, so that it does not matter whether a call is spent by use.
    """
    watch = _Watch()
    thunks = [make() for _ in range(3)]  # all live, so that no address comes again
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
    """Sees every operator that is dispatched, and the memory that came with it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.costs = _NOTHING
        self.held: list[Any] = []
        """Everything seen: memory that is freed and taken again would look like the old one."""
        self._known: list[tuple[int, int]] = []
        """First address of, and the one behind, the storages seen so far, ascending."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operator; count it."""
        kind = func.overloadpacket
        if kind not in _LIFTS:
            for tensor in _tensors((args, kwargs)):
                self._is_new(tensor)
        result = func(*args, **(kwargs or {}))
        made = [tensor.untyped_storage() for tensor in _tensors(result) if self._is_new(tensor)]
        copied = [tensor.nbytes for tensor in _tensors(result)] if kind in _COPIES else []
        before = self.costs
        self.costs = msgspec.structs.replace(
            before,
            allocations=before.allocations + len(made),
            allocated_bytes=before.allocated_bytes + sum(storage.nbytes() for storage in made),
            dispatches=before.dispatches + 1,
            copies=before.copies + len(copied),
            copied_bytes=before.copied_bytes + sum(copied),
        )
        return result

    def _is_new(self, tensor: torch.Tensor) -> bool:
        """Whether its memory was not seen before; from now on it was."""
        storage = tensor.untyped_storage()
        start, size = storage.data_ptr(), storage.nbytes()
        place = bisect(self._known, (start, math.inf))
        if size == 0 or (place and start < self._known[place - 1][1]):
            return False
        self._known.insert(place, (start, start + size))
        self.held.append(storage)  # a tensor held here would be detached, one operator more
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
    """Kernels launched and waits of one call; None where the profiler cannot see a GPU."""
    from torch.profiler import ProfilerActivity, profile, record_function, supported_activities

    if ProfilerActivity.CUDA not in supported_activities():  # type: ignore[no-untyped-call]
        return None, None
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        with record_function(_RANGE):
            thunk()
        torch.cuda.synchronize()
    return launches_and_waits(seen.events() or ())


def launches_and_waits(events: Iterable[Any]) -> tuple[int, int]:
    """Kernels on the device, and waits inside the call, of a profiler's events.

    A kernel counts wherever it ran: with a range of the host it would be missed, as it
    runs later. The wait that ends the measurement lies behind the call and is left out.
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
