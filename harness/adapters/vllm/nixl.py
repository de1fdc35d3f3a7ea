"""Block ids of a transfer for vLLM, whose NIXL connector has them as methods of its worker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from attnproof.harness.adapters.quiet import quietly

BlockIds = list[list[int]]


def _worker(is_state: list[bool]) -> SimpleNamespace:
    """Return what the methods read of a worker: the groups, and which have states."""
    specs = quietly("vllm.v1.kv_cache_interface")
    kinds = [specs.MambaSpec if state else specs.FullAttentionSpec for state in is_state]
    groups = [SimpleNamespace(kv_cache_spec=object.__new__(kind)) for kind in kinds]
    return SimpleNamespace(
        _group_spec_types=tuple(kinds),
        _has_mamba=any(is_state),
        kv_cache_config=SimpleNamespace(transfer_groups=groups),
    )


class _Method:
    """Methods of the class of the worker."""

    def __init__(self, worker_class: Any) -> None:
        self._class = worker_class


class PairBlockIds(_Method):
    """Expansion of each side by its ratio, then the trim to what the decode side lacks."""

    def __call__(
        self,
        decode_block_ids: BlockIds,
        prefill_block_ids: BlockIds,
        decode_ratio: int,
        prefill_ratio: int,
        is_state: list[bool],
    ) -> tuple[BlockIds, BlockIds]:
        """Return the kernel blocks of both sides, by group."""
        worker = _worker(is_state)
        expand = self._class._logical_to_kernel_block_ids
        decode = expand(worker, decode_block_ids, decode_ratio)
        prefill = expand(worker, prefill_block_ids, prefill_ratio)
        sides = self._class._apply_prefix_caching(
            worker, decode, prefill, decode_ratio, prefill_ratio
        )
        return list(sides[0]), list(sides[1])


class MapBlockIds(_Method):
    """Local block ids in blocks of the remote size."""

    def __call__(self, local: Any, remote: Any, ratio: int, is_state: list[bool]) -> Any:
        """Return the local and the remote block ids, by group."""
        worker = _worker(is_state)
        worker.get_mapped_blocks = lambda *args: self._class.get_mapped_blocks(worker, *args)
        return self._class._map_block_ids_for_block_size_ratio(worker, local, remote, ratio)
