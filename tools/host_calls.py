"""The calls that `host_costs.py` times: those of attnproof.optimized, and vLLM's for the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

FUNCTIONS = (
    "prepare_pos_seq_lens, prepare_prefill_inputs, combine_sampled_and_draft_tokens,"
    "expand_idx_mapping, get_num_sampled_and_rejected, post_update,"
    "post_update_num_computed_tokens, compute_token_to_req_indices, prepare_dcp_local_seq_lens,"
    "eagle_step_update_slot_mapping_and_metadata, prepare_next_token_ids_padded,"
    "prepare_inputs_padded, copy_and_expand_eagle_inputs, compute_new_slot_mapping,"
    "map_to_kernel_block_table, mamba_get_block_table_tensor, make_local_attention_virtual_batches,"
    "split_attn_metadata, create_flashinfer_kv_indices, get_batch_indices_positions,"
    "compute_flashinfer_kv_metadata, get_last_loc, alloc_extend, alloc_decode, compute_position,"
    "write_req_to_token_pool, reshape_and_cache_flash"
)
"""Functions whose arguments the cases of `bench` give."""
Thunk = Callable[[], object]
Row = tuple[str, Thunk, Thunk | None]
"""Name, our call, vLLM's."""


def of_vllm() -> dict[str, Any]:
    """Return vLLM's functions by the names of ours; it must find an active GPU of Triton's."""
    from attnproof.harness.adapters.quiet import quietly

    with patch.object(torch.cuda, "is_available", lambda: True):
        assert quietly("vllm.triton_utils").HAS_TRITON, "vLLM leaves Triton out"
    from attnproof.harness.adapters.vllm.catalogue import KERNELS, adapted
    from attnproof.harness.adapters.vllm.installed import version

    ops = "vllm.v1.attention.ops.triton_"
    found = {name: adapted(entry, name, version()) for name, entry in KERNELS.items()}
    del found["copy_and_expand_eagle_inputs"]  # the adapter reads offsets on the host
    found["reshape_and_cache_flash"] = quietly(
        f"{ops}reshape_and_cache_flash"
    ).triton_reshape_and_cache_flash
    found["attention"] = quietly(f"{ops}unified_attention").unified_attention
    found["slots"] = quietly("vllm.v1.worker.block_table")._COMPUTE_SLOT_MAPPING_KERNEL
    return found


def on_meta(name: str, value: Any) -> Any:
    """Return an argument with its tensors on "meta", but those whose name says CPU."""
    if isinstance(value, torch.Tensor):
        strides = value.stride()
        like = torch.empty_strided(value.shape, strides, dtype=value.dtype, device="meta")
        return value if name.endswith("_cpu") else like
    if type(value) in (list, tuple):
        return type(value)(on_meta(name, each) for each in value)
    if isinstance(value, torch.device):
        return torch.device("meta")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return dataclasses.replace(value, **{n: on_meta(n, getattr(value, n)) for n in names})
    return value


def rows(vllm: dict[str, Any]) -> Iterator[Row]:
    """Yield the calls of a step of 60 decodes and 4 prefills of 512 tokens."""
    from attnproof import optimized
    from attnproof.harness.cases.batches.strategies import make_batch
    from attnproof.harness.operations import ALL

    batch = make_batch([1] * 60 + [512] * 4, [1000] * 60 + [0] * 4, 16)
    for name in FUNCTIONS.replace(" ", "").split(","):
        operation = ALL[name]
        cases = [*(operation.bench.cases or operation.inputs.from_batch)(batch)]
        case = cases[0] if cases else next(iter(operation.bench.models()))[1]
        call = operation.call.prepare(case, 0, "cpu")
        call.args = {key: on_meta(key, value) for key, value in call.args.items()}
        theirs = operation.call.bind(vllm[name], call) if name in vllm else None
        yield name, operation.call.bind(getattr(optimized, name), call), theirs
    yield from _batch_rows(vllm)
    yield from _attention_rows(vllm)
    yield "a whole step of 64 decodes", _step(), None


def _meta(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _batch_rows(vllm: dict[str, Any]) -> Iterator[Row]:
    from attnproof.optimized import BlockTables, build_slot_mapping, copy_blocks

    starts, lengths, table = _meta(65), _meta(64), _meta(64, 500)
    slots, positions = (_meta(2108, dtype=torch.int64) for _ in range(2))
    yield (
        "build_slot_mapping",
        lambda: build_slot_mapping(starts, lengths, table, 16, num_padded_tokens=2108, out=slots),
        partial(vllm["slots"], 64, 2108, 2108, starts, positions, table, 500, slots, 16, 1, 0, 1)
        if vllm
        else None,
    )
    cache, pairs = _meta(2, 900, 16, 8, 128, dtype=torch.bfloat16), _meta(64, 2, dtype=torch.int64)
    yield "copy_blocks of one layer", lambda: copy_blocks([cache], pairs), None
    sizes = ([16, 16], 64, 2108, [500, 500], torch.device("meta"))
    ours = BlockTables(*sizes)
    theirs = vllm["BlockTables"](*sizes) if vllm else None

    def write() -> None:
        ours.append_block_ids(3, ([7], [8]), overwrite=True)
        ours.apply_staged_writes()

    def gather(tables: Any) -> Thunk:
        return lambda: tables.gather_block_tables(lengths, 64)

    def slots_of(tables: Any) -> Thunk:
        return lambda: tables.compute_slot_mappings(lengths, starts, positions, 2108)

    yield "gather_block_tables", gather(ours), theirs and gather(theirs)
    yield "compute_slot_mappings", slots_of(ours), theirs and slots_of(theirs)
    yield "append_block_ids, apply_staged_writes", write, None


def _attention_rows(vllm: dict[str, Any]) -> Iterator[Row]:
    from attnproof.optimized import decode_attention, paged_attention

    cache = _meta(2, 900, 16, 8, 128, dtype=torch.bfloat16).unbind()
    lengths, table = _meta(64), _meta(64, 500)
    scratch = [_meta(64, 32, 16, *size, dtype=torch.float32) for size in ((128,), (), ())]
    for name, tokens, longest, most in (
        ("paged_attention", 2108, 512, 1060),
        ("decode_attention", 64, 1, 1060),
        ("decode_attention of one request", 1, 1, 8000),
    ):
        requests = min(tokens, 64)
        query, out = (_meta(tokens, 32, 128, dtype=torch.bfloat16) for _ in range(2))
        seqs, blocks, starts = lengths[:requests], table[:requests], _meta(requests + 1)
        shared: Any = {"max_seq_len": most, "out": out}
        if longest > 1:
            arguments: Any = (query, *cache, starts, seqs, blocks, 0.1)
            own = partial(paged_attention, *arguments, max_query_len=longest, **shared)
        else:
            own = partial(decode_attention, query, *cache, seqs, blocks, 0.1, **shared)
        parts = (128 // 8, 16, *scratch) if longest == 1 else ()
        rest = (starts, longest, seqs, most, 0.1, True, (-1, -1), blocks, 0.0, None, None, None)
        theirs = partial(vllm["attention"], query, *cache, out, *rest, *parts) if vllm else None
        yield name, own, theirs


def _step() -> Thunk:
    """Return what a graph of a model with one layer captures, launched call by call."""
    from attnproof import optimized as ops

    requests, computed, lengths, starts = _meta(64), _meta(64), _meta(64), _meta(65)
    positions = _meta(64, dtype=torch.int64)
    tables = ops.BlockTables([16], 64, 64, [500], torch.device("meta"))
    caches = _meta(2, 900, 16, 8, 128, dtype=torch.bfloat16).unbind()
    query, out = (_meta(64, 32, 128, dtype=torch.bfloat16) for _ in range(2))
    new, scale = _meta(64, 8, 128, dtype=torch.bfloat16), _meta(1, dtype=torch.float32)

    def step() -> None:
        ops.prepare_pos_seq_lens(requests, starts, computed, positions, lengths)
        (blocks,) = tables.gather_block_tables(requests, 64)
        slots = tables.compute_slot_mappings(requests, starts, positions, 64)[0]
        ops.reshape_and_cache_flash(new, new, *caches, slots, "auto", scale, scale)
        bounds: Any = {"max_query_len": 1, "max_seq_len": 1060}
        ops.paged_attention(query, *caches, starts, lengths, blocks, 0.1, **bounds, out=out)

    return step
