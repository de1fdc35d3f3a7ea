"""Transfers of vLLM's NIXL connector, which has most of them as methods of its worker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from attnproof.harness.adapters.quiet import quietly

BlockIds = list[list[int]]


def _kinds(is_state: list[bool]) -> list[Any]:
    """Return vLLM's class of each group."""
    specs = quietly("vllm.v1.kv_cache_interface")
    return [specs.MambaSpec if state else specs.FullAttentionSpec for state in is_state]


def _worker(is_state: list[bool]) -> SimpleNamespace:
    """Return what the methods read of a worker: the groups, and which have states."""
    kinds = _kinds(is_state)
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


class TPMapping:
    """Mapping of the ranks of two engines."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(
        self,
        tp_rank: int,
        tp_size: int,
        remote_tp_size: int,
        total_num_kv_heads: int,
        is_mla: bool,
        has_states: bool,
    ) -> tuple[list[int], list[int], dict[int, int], int]:
        """Return the ranks of a group of keys, those of one of states, slots and offset."""
        topology = quietly("vllm.distributed.kv_transfer.kv_connector.utils").TransferTopology(
            tp_rank=tp_rank,
            tp_size=tp_size,
            block_size=16,
            engine_id="local",
            is_mla=is_mla,
            is_mamba=has_states,
            total_num_kv_heads=total_num_kv_heads,
            attn_backends=[],
        )
        kinds = _kinds([False, True][: 1 + has_states])
        mapping = self._function(topology, remote_tp_size, tuple(kinds))
        ranks = [list(group) for group in mapping.source_ranks_per_group]
        states = ranks[1] if has_states else []
        return ranks[0], states, mapping.rank_to_attention_slot, mapping.rank_offset_factor
