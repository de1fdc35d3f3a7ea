"""Catalogue of vLLM: the places of each operation, and reasons for those that it has not.

What a release has decides, not its number: names in the source of its modules, parameters, and
members of its classes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from attnproof import reference
from attnproof.harness.adapters.quiet import quietly
from attnproof.harness.adapters.single_engines import interprets
from attnproof.harness.adapters.vllm import (
    attention,
    builders,
    drafter,
    functions,
    kv_manager,
    latent,
    nixl,
    offload,
    state_builders,
    state_moves,
    zeroing,
)
from attnproof.harness.adapters.vllm.functions import Adapted, First
from attnproof.harness.adapters.vllm.installed import defines, find
from attnproof.harness.adapters.vllm.kernel_blocks import KernelBlocks
from attnproof.harness.adapters.vllm.metadata import CONVERSION, UTILS
from attnproof.harness.adapters.vllm.slots import V0Slots, V1Slots
from attnproof.harness.interfaces.builders import fast_prefill_backend, v1_builder
from attnproof.harness.operations import ALL
from attnproof.harness.running.engine_source import members_of
from attnproof.harness.running.engines import V0_UTILS

_ABSTRACT = ("attention.backends.abstract", "v1.attention.backend")
_XFORMERS = ("v1.attention.backends.xformers",)
_UBATCH = ("v1.worker.ubatch_utils", UTILS)
_XFORMERS_CLASSES = ("XFormersAttentionImpl", "XFormersAttentionBackend")
_MLA = "model_executor.layers.attention.mla_attention"
_SPARSE = "v1.attention.backends.mla"
_DRAFTER = "v1.spec_decode.utils"
_REORDER = "reorder_batch_to_split_decodes_and_prefills"
_CONNECTOR = "distributed.kv_transfer.kv_connector.v1.nixl"
_NIXL = (f"{_CONNECTOR}.base_worker",)


class Entry(NamedTuple):
    """The place of one operation in vLLM."""

    places: tuple[str, ...]
    """Modules below `vllm` that may have it, depending on the release."""
    adapt: Callable[[Any], Any] | None = None
    """Function that makes the operation take our arguments; None to offer it unchanged."""
    name: str = ""
    """Name in vLLM, "" if it equals ours."""
    method: str = ""
    """Method that is called, of a class."""
    passes: tuple[str, ...] = ()
    """Parameters that the adapter fills; empty for those of ours, by position."""
    members: tuple[str, ...] = ()
    """Members that a class must have."""


_BATCH = "common_attn_metadata"
PROPOSER = Entry(
    ("v1.spec_decode.llm_base_proposer", "v1.spec_decode.eagle"), name="SpecDecodeBaseProposer"
)
"""The class of which some operations of section 14 are methods."""


_RUNNER = "v1.worker.gpu"
_INPUTS = Entry((f"{_RUNNER}.input_batch",))
_ATTENTION = Entry(("v1.attention.ops.triton_unified_attention",), name="unified_attention")
_WRITE = "triton_reshape_and_cache_flash"


def _tables(cls: type[Any]) -> type[Any]:
    """Return BlockTables; without a GPU it gets buffers of vLLM's CPU runner, not pinned ones."""
    if interprets():
        buffers = quietly(f"vllm.{_RUNNER}.buffer_utils")
        buffers.UvaBuffer = find(("v1.worker.cpu.buffer_utils",), "UvaBuffer")  # type: ignore[attr-defined]
    return cls


def _xformers_builder(cls: type[Any]) -> type[Any]:
    return builders.xformers_builder(cls, find((UTILS,), _REORDER))


_v1_builder = partial(v1_builder, conversion=CONVERSION)
_fast_prefill_backend = partial(fast_prefill_backend, conversion=CONVERSION)


def _lightning(name: str, *counts: str) -> Entry:
    """Return the entry of a builder of lightning attention."""
    passes = ("common_prefix_len", "common_attn_metadata", *counts)
    place = "v1.attention.backends.linear_attn"
    return Entry((place,), state_builders.build, name, method="build", passes=passes)


ENTRIES: dict[str, Entry] = {
    "split_decodes_and_prefills": Entry((UTILS,), functions.split),
    _REORDER: Entry((UTILS,), functions.reorder),
    "_make_metadata_with_slice": Entry(_UBATCH, Adapted),
    "split_attn_metadata": Entry(_UBATCH, Adapted),
    "make_local_attention_virtual_batches": Entry((UTILS,), First),
    "make_kv_sharing_fast_prefill_common_attn_metadata": Entry((UTILS,), Adapted),
    "create_fast_prefill_custom_backend": Entry((UTILS,), _fast_prefill_backend),
    "compute_causal_conv1d_metadata": Entry((UTILS,), functions.conv1d),
    "get_kv_cache_layout": Entry((UTILS,), functions.layout_reader),
    "get_per_layer_parameters": Entry((UTILS,), functions.layers),
    "is_all_cross_attn_metadata_set": Entry((V0_UTILS,), functions.cross_attention),
    "AttentionMetadataBuilder": Entry(
        (UTILS, *_ABSTRACT[1:]),
        _v1_builder,
        members=("_init_reorder_batch_threshold", "use_cascade_attention"),
    ),
    "AttentionBackend": Entry(_ABSTRACT, members=("get_state_cls", "make_metadata")),
    "AttentionMetadata": Entry(_ABSTRACT, members=("num_prefills",)),
    "build_slot_mapping": Entry((V0_UTILS,), V0Slots, "compute_slot_mapping"),
    "XFormersAttentionMetadataBuilder": Entry(_XFORMERS, _xformers_builder),
    "split_decodes_prefills_and_extends": Entry((UTILS,), Adapted),
    "maybe_create_ubatch_slices": Entry(_UBATCH[:1], Adapted),
    "mamba_get_block_table_tensor": Entry((UTILS,), functions.state_blocks),
    "mamba_build": Entry(
        ("v1.attention.backends.mamba_attn",),
        state_builders.mamba_build,
        "BaseMambaAttentionMetadataBuilder",
        method="build",
        passes=("common_prefix_len", "common_attn_metadata"),
        members=("_compute_common_metadata",),
    ),
    "gdn_build": Entry(
        ("v1.attention.backends.gdn_attn",),
        state_builders.gdn_build,
        "GDNAttentionMetadataBuilder",
        method="build",
        passes=("common_prefix_len", "common_attn_metadata", "num_accepted_tokens"),
    ),
    "kda_build": Entry(
        ("v1.attention.backends.gdn_attn",),
        state_builders.kda_build,
        "GDNAttentionMetadataBuilder",
        method="build",
        passes=("common_prefix_len", "common_attn_metadata", "num_accepted_tokens"),
    ),
    "StateSpaceBuilder": Entry(
        ("v1.attention.backends.mamba_attn",),
        state_builders.graph_builder,
        "BaseMambaAttentionMetadataBuilder",
        members=("update_block_table", "build_for_cudagraph_capture"),
    ),
    "linear_build": _lightning("LinearAttentionMetadataBuilder"),
    "bailing_build": _lightning("BailingLinearAttentionMetadataBuilder", "num_accepted_tokens"),
    "ple_short_conv_build": Entry(
        ("v1.attention.backends.short_conv_attn",),
        state_builders.build,
        "PleShortConvAttentionMetadataBuilder",
        method="build",
        passes=("common_prefix_len", "common_attn_metadata", "num_accepted_tokens"),
    ),
    "split_indexer_prefill_chunks": Entry(
        (f"{_SPARSE}.indexer",),
        latent.indexer_chunks,
        "DeepseekV32IndexerMetadataBuilder",
        members=("_split_indexer_prefill_chunks",),
    ),
    "build_mla_chunked_context_metadata": Entry((_MLA,), latent.context_chunks),
    "compute_varlen_chunk_metadata": Entry(("v1.attention.backends.mamba2_attn",)),
    "compute_mamba_prefill_checkpoints": Entry(
        ("model_executor.layers.mamba.checkpoint",),
        functions.prefill_checkpoints,
        passes=(
            "seq_lens",
            "query_lens",
            "hash_block_size",
            "mamba_block_size",
            "checkpoint_alignment",
            "drop_eagle_block",
            "cache_hit_alignment_tokens",
        ),
    ),
    "map_to_kernel_block_table": Entry(
        ("v1.worker.utils",),
        KernelBlocks,
        "AttentionGroup",
        members=("map_to_kernel_block_table",),
    ),
    "prepare_inputs": PROPOSER._replace(
        adapt=drafter.prepare_inputs,
        method="prepare_inputs",
        passes=(_BATCH, "sampled_token_ids", "num_draft_tokens"),
    ),
    "KVCacheManager": Entry(
        ("v1.core.kv_cache_manager",),
        kv_manager.manager_class,
        passes=(
            "kv_cache_config",
            "max_model_len",
            "scheduler_block_size",
            "hash_block_size",
            "enable_caching",
            "use_eagle",
            "watermark",
        ),
        members=("get_computed_blocks_for_connector", "truncate_computed_blocks"),
    ),
    "match_block_hashes": Entry(
        ("v1.core.kv_cache_utils",), kv_manager.BlockHashes, "get_request_block_hasher"
    ),
    "copy_offloaded_blocks": Entry(
        ("v1.kv_offload.cpu.gpu_worker",),
        offload.OffloadedBlocks,
        "SingleDirectionOffloadingHandler",
        members=("transfer_async", "_fill_direct_ops"),
    ),
    "compute_tp_mapping": Entry(
        (f"{_CONNECTOR}.tp_mapping",),
        nixl.TPMapping,
        passes=("transfer_topology", "remote_tp_size", "group_spec_types"),
    ),
    "pair_block_ids": Entry(
        _NIXL,
        nixl.PairBlockIds,
        "NixlBaseConnectorWorker",
        members=("_logical_to_kernel_block_ids", "_apply_prefix_caching"),
    ),
    "map_block_ids_for_block_size_ratio": Entry(
        _NIXL,
        nixl.MapBlockIds,
        "NixlBaseConnectorWorker",
        members=("_map_block_ids_for_block_size_ratio",),
    ),
    "compute_new_slot_mapping": Entry((_DRAFTER,), drafter.compute_new_slot_mapping),
    "extend_all_queries_by_N": Entry((_DRAFTER,), Adapted),
}
"""Operations whose arguments are adapted, or whose name is not enough to find them."""
_SAME_NAME = Entry((UTILS, *_UBATCH[:1], *_ABSTRACT, *_XFORMERS, _MLA, V0_UTILS))
"""Default: an operation that takes our arguments as they are, under our name."""

KERNELS: dict[str, Entry] = {
    "BlockTables": Entry(
        (f"{_RUNNER}.block_table",),
        _tables,
        passes=(
            "block_sizes",
            "max_num_reqs",
            "max_num_batched_tokens",
            "max_num_blocks_per_group",
            "device",
        ),
    ),
    "paged_attention": _ATTENTION._replace(adapt=attention.paged_attention),
    "decode_attention": _ATTENTION._replace(adapt=attention.decode_attention),
    "reshape_and_cache_flash": Entry(
        (f"v1.attention.ops.{_WRITE}",), attention.cache_write, _WRITE
    ),
    "prepare_dcp_local_seq_lens": Entry((f"{_RUNNER}.cp_utils",)),
    "prepare_pos_seq_lens": _INPUTS,
    "prepare_prefill_inputs": _INPUTS,
    "combine_sampled_and_draft_tokens": _INPUTS,
    "expand_idx_mapping": _INPUTS,
    "get_num_sampled_and_rejected": _INPUTS,
    "post_update": _INPUTS,
    "post_update_num_computed_tokens": _INPUTS,
    "compute_token_to_req_indices": Entry(("v1.attention.ops.metadata",)),
    "convert_req_index_to_global_index": Entry(
        (f"{_SPARSE}.sparse_utils",),
        functions.global_indices,
        "triton_convert_req_index_to_global_index",
    ),
    "eagle_step_update_slot_mapping_and_metadata": Entry((_DRAFTER,)),
    "prepare_next_token_ids_padded": PROPOSER._replace(
        adapt=drafter.NextTokens,
        method="prepare_next_token_ids_padded",
        passes=("sampled_token_ids", "requests", "gpu_input_batch", "discard_request_mask"),
    ),
    "prepare_inputs_padded": PROPOSER._replace(
        adapt=drafter.prepare_inputs_padded,
        method="prepare_inputs_padded",
        passes=(_BATCH, "spec_decode_metadata", "valid_sampled_tokens_count"),
    ),
    "copy_and_expand_eagle_inputs": Entry(
        (_DRAFTER,), drafter.ExpandedInputs, "_copy_and_expand_eagle_inputs"
    ),
    "preprocess_mamba_align": Entry(
        ("v1.worker.mamba_utils",),
        state_moves.preprocess_mamba_align,
        "MambaSpecDecodeGPUContext",
        members=("run_fused_precopy",),
    ),
    "postprocess_mamba_align": Entry(
        ("v1.worker.mamba_utils",),
        state_moves.postprocess_mamba_align,
        "MambaSpecDecodeGPUContext",
        members=("run_fused_postprocess_align",),
    ),
    "zero_blocks": Entry(
        ("v1.worker.utils",),
        zeroing.BlockZeroer,
        "KVBlockZeroer",
        members=("__init__", "zero_block_ids"),
    ),
}
"""Operations that are Triton kernels or launch one, which the adapter `vllm_triton` offers."""

BLOCK_TABLE = Entry(
    ("v1.worker.block_table",),
    V1Slots,
    "BlockTable",
    "compute_slot_mapping",
    ("req_indices", "positions"),
)
"""`build_slot_mapping` of releases without the list form of V0, which 0.10 has beside it."""

_OF_SGLANG = (
    "create_flashinfer_kv_indices",
    "alloc_extend",
    "alloc_decode",
    "get_last_loc",
    "write_req_to_token_pool",
    "compute_position",
    "get_dcp_lens",
    "localize_dcp_indices",
)
_GONE = "vLLM {version} has no {name}"
_OURS = "attnproof's own: no vLLM has it"
_SGLANG = "SGLang's: no vLLM has it"
_KERNEL = "a Triton kernel of vLLM {version}: the candidate vllm-triton has it"
_OPERATORS = "needs vLLM's compiled operators, which the adapter does not use"
_REASONS: dict[str, str] = {
    "CommonAttentionMetadata": "no vLLM puts graph padding on a batch with a function of its own",
    "PersistentBatch": _OURS,
    "rank_slot_mapping": "the adapter gives build_slot_mapping no ranks",
    "batch_sequence": "vLLM's functions keep nothing between steps: each is judged by itself",
    "swap_blocks": _OPERATORS,
    "copy_blocks": _OPERATORS,
    "compute_flashinfer_kv_metadata": "a method of vLLM's builder for FlashInfer, which must be "
    "installed",
    "get_batch_indices_positions": "FlashInfer's: no vLLM has it",
    **dict.fromkeys(_OF_SGLANG, _SGLANG),
}
"""Reasons for the operations that no release offers."""


class UnfitError(Exception):
    """The reason that an operation of the installed vLLM is not offered."""


def offered(version: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the operations of this vLLM by our names, and a reason for every other one."""
    operations: dict[str, Any] = {}
    lacking = dict(_REASONS)
    for name in names() - lacking.keys():
        try:
            operations[name] = _operation(name, version)
        except UnfitError as reason:
            lacking[name] = str(reason)
    return operations, lacking


def names() -> set[str]:
    """Return all names that an operation or a step of a sequence calls."""
    return {name for operation in ALL.values() for name in operation.call.names(operation.name)}


def _operation(name: str, version: str) -> Any:
    """Return an operation of the installed vLLM with our arguments (UnfitError)."""
    if name in KERNELS and _is_there(KERNELS[name], name):
        raise UnfitError(_KERNEL.format(version=version))
    if name in _XFORMERS_CLASSES and defines(_XFORMERS, name):
        raise UnfitError(_OPERATORS)
    entry = ENTRIES.get(name, _SAME_NAME)
    if name == "build_slot_mapping" and not _is_there(entry, name):
        entry = BLOCK_TABLE
    return adapted(entry, name, version)


def _is_there(entry: Entry, name: str) -> bool:
    return defines(entry.places, entry.name or name)


def adapted(entry: Entry, name: str, version: str) -> Any:
    """Return an operation of the installed vLLM with our arguments (UnfitError).

    Its name, parameters and members must be those that the adapter knows.
    """
    wanted = entry.name or name
    # By its source: to import the module of a class that does not fit may need many packages.
    members = frozenset().union(*(members_of(f"vllm.{place}", wanted) for place in entry.places))
    missing = " and no ".join(member for member in entry.members if member not in members)
    if missing and _is_there(entry, name):
        raise UnfitError(f"the {wanted} of vLLM {version} has no {missing}")
    original = find(entry.places, wanted)
    if original is None:
        missing = f"{wanted}.{entry.method}" if entry.method else name
        raise UnfitError(_GONE.format(version=version, name=missing))
    if entry.passes or entry.adapt is None:
        _check_parameters(entry, name, original, version)
    return original if entry.adapt is None else entry.adapt(original)


def _check_parameters(entry: Entry, name: str, original: Any, version: str) -> None:
    """Raise UnfitError if the function does not take what the adapter fills."""
    function = getattr(original, entry.method) if entry.method else original
    try:
        signature = inspect.signature(function)
        if entry.passes:
            own = (None,) if entry.method else ()
            signature.bind(*own, **dict.fromkeys(entry.passes))
        else:
            signature.bind(*_required(name))
    except TypeError:
        takes = ", ".join(parameter for parameter in signature.parameters if parameter != "self")
        name = entry.method or name
        raise UnfitError(
            f"{name} of vLLM {version} takes ({takes}), for which there is no adapter"
        ) from None


def _required(name: str) -> list[str]:
    """Return the names of our parameters that every call has, by position."""
    parameters = inspect.signature(getattr(reference, name)).parameters.values()
    return [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
