"""Our functions in the place of a running vLLM 0.32's, with a switch and a count of their calls."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

PLACES = (
    "vllm.v1.attention.backends.utils",
    "vllm.v1.attention.backend",
    "vllm.v1.worker.ubatch_utils",
    "vllm.v1.spec_decode.utils",
    "vllm.model_executor.layers.attention.mla_attention",
)
"""Modules of vLLM 0.32 that define functions of its interface."""
_TABLES = "vllm.v1.worker.block_table"
SLOTS = "BlockTable.compute_slot_mapping"
"""The method for which `build_slot_mapping` stands in: vLLM has no such function."""


class Swap(NamedTuple):
    """A function of the engine, and ours."""

    name: str
    theirs: Callable[..., Any]
    ours: Callable[..., Any]


class Switch:
    """Choice between the engine's functions and ours, with the calls of both."""

    def __init__(self) -> None:
        self.ours = True
        """True if ours are called."""
        self.calls: Counter[str] = Counter()
        """Calls of ours."""
        self.seconds = 0.0
        """Time in functions of either side, until it is set to 0."""
        self._depth = 0

    def between(self, swap: Swap) -> Callable[..., Any]:
        """Return a plain function, which can be a method too, that calls the chosen one."""

        @functools.wraps(swap.theirs)
        def chosen(*args: Any, **kwargs: Any) -> Any:
            function = swap.ours if self.ours else swap.theirs
            self.calls[swap.name] += self.ours
            self._depth += 1
            begun = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self._depth -= 1
                if not self._depth:  # else the outer call's time has it
                    self.seconds += time.perf_counter() - begun

        return chosen


def swaps_of(ours: Any, places: Iterable[str] = PLACES) -> Iterator[Swap]:
    """Yield the functions that modules define and `ours`, such as of `offered_as`, offers."""
    for place in places:
        module = importlib.import_module(place)
        for name, part in vars(ours).items():
            theirs = vars(module).get(name)
            if inspect.isfunction(theirs) and theirs.__module__ == place:
                yield Swap(name, theirs, part)


def install(swaps: Iterable[Swap], switch: Switch) -> list[str]:
    """Put the switch in every module that has imported a function; return the functions' names.

    Modules that are imported later take it from where the function is defined.
    """
    names = []
    for swap in swaps:
        part = switch.between(swap)
        for module in list(sys.modules.values()):
            for held in [k for k, v in vars(module).items() if v is swap.theirs]:
                setattr(module, held, part)
        names.append(swap.name)
    return names


def install_slots(ours: Any, switch: Switch) -> str:
    """Let the engine's block tables compute slots by `build_slot_mapping`; return the name."""
    module = importlib.import_module(_TABLES)
    build, none = ours.build_slot_mapping, module.SlotMappingMode.NONE

    def compute_slot_mapping(
        self: Any, num_reqs: int, query_start_loc: Any, positions: Any
    ) -> None:
        if self.slot_mapping_mode is none:
            return
        offsets = query_start_loc[: num_reqs + 1]
        # A last row without tokens begins behind the last position.
        first = offsets[:-1].clamp(max=len(positions) - 1)
        build(
            offsets,
            positions[first],
            self.block_table.gpu[:num_reqs],
            self.block_size,
            out=self.slot_mapping.gpu,
            cp_size=self.dcp_world_size,
            cp_rank=self.dcp_rank,
            cp_interleave=self.cp_kv_cache_interleave_size,
        )

    theirs = module.BlockTable.compute_slot_mapping
    swap = Swap(SLOTS, theirs, compute_slot_mapping)
    module.BlockTable.compute_slot_mapping = switch.between(swap)
    return SLOTS
