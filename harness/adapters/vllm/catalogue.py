"""Catalogue of vLLM: the module of each operation by version, and reasons for the others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from attnproof.harness.adapters.quiet import quietly
from attnproof.harness.adapters.vllm import builders, drafter, functions
from attnproof.harness.adapters.vllm.functions import Adapted, First
from attnproof.harness.adapters.vllm.installed import find, minor
from attnproof.harness.adapters.vllm.kernel_blocks import KernelBlocks
from attnproof.harness.adapters.vllm.metadata import CONVERSION, UTILS
from attnproof.harness.adapters.vllm.slots import V0Slots, V1Slots
from attnproof.harness.interfaces.builders import fast_prefill_backend, v1_builder
from attnproof.harness.operations import ALL

_V0 = "attention.backends.utils"
_ABSTRACT = ("attention.backends.abstract", "v1.attention.backend")
_XFORMERS = ("v1.attention.backends.xformers",)
_UBATCH = ("v1.worker.ubatch_utils", UTILS)
_XFORMERS_CLASSES = ("XFormersAttentionImpl", "XFormersAttentionBackend")
_MLA = "model_executor.layers.attention.mla_attention"
_DRAFTER = "v1.spec_decode.utils"
_REORDER = "reorder_batch_to_split_decodes_and_prefills"


class Entry(NamedTuple):
    """The place of one operation in vLLM."""

    places: tuple[str, ...]
    """Modules below `vllm` that may have it, by version."""
    adapt: Callable[[Any], Any] | None = None
    """Function that makes the operation take our arguments; None to offer it unchanged."""
    name: str = ""
    """Name in vLLM, "" if it equals ours."""
    since: tuple[int, int] = (0, 0)
    """First two numbers of the release that has it: to import a module of another meaning in an
    earlier release may need many packages."""


_LATER = (0, 32)
PROPOSER = Entry(("v1.spec_decode.llm_base_proposer",), name="SpecDecodeBaseProposer", since=_LATER)
"""The class of which some operations of section 14 are methods."""


_RUNNER = "v1.worker.gpu"
_INPUTS = Entry((f"{_RUNNER}.input_batch",))


def _tables(cls: type[Any]) -> type[Any]:
    """Return BlockTables, with the buffers that vLLM's CPU runner takes for pinned memory."""
    buffers = quietly(f"vllm.{_RUNNER}.buffer_utils")
    buffers.UvaBuffer = find(("v1.worker.cpu.buffer_utils",), "UvaBuffer")  # type: ignore[attr-defined]
    return cls


def _xformers_builder(cls: type[Any]) -> type[Any]:
    return builders.xformers_builder(cls, find((UTILS,), _REORDER))


_v1_builder = partial(v1_builder, conversion=CONVERSION)
_fast_prefill_backend = partial(fast_prefill_backend, conversion=CONVERSION)

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
    "is_all_cross_attn_metadata_set": Entry((_V0,), functions.cross_attention),
    "AttentionMetadataBuilder": Entry((UTILS, *_ABSTRACT[1:]), _v1_builder),
    "XFormersAttentionMetadataBuilder": Entry(_XFORMERS, _xformers_builder),
    "split_decodes_prefills_and_extends": Entry((UTILS,), Adapted),
    "maybe_create_ubatch_slices": Entry(_UBATCH[:1], Adapted),
    "mamba_get_block_table_tensor": Entry((UTILS,), functions.state_blocks),
    "map_to_kernel_block_table": Entry(
        ("v1.worker.utils",), KernelBlocks, "AttentionGroup", _LATER
    ),
    "prepare_inputs": PROPOSER._replace(adapt=drafter.prepare_inputs),
    "compute_new_slot_mapping": Entry((_DRAFTER,), drafter.compute_new_slot_mapping, since=_LATER),
    "extend_all_queries_by_N": Entry((_DRAFTER,), Adapted, since=_LATER),
}
"""Operations whose arguments are adapted, or whose name is not enough to find them."""
_SAME_NAME = Entry((UTILS, *_UBATCH[:1], *_ABSTRACT, *_XFORMERS, _MLA, _V0))
"""Default: an operation that takes our arguments as they are, under our name."""

KERNELS: dict[str, Entry] = {
    "BlockTables": Entry((f"{_RUNNER}.block_table",), _tables),
    "prepare_dcp_local_seq_lens": Entry((f"{_RUNNER}.cp_utils",)),
    "prepare_pos_seq_lens": _INPUTS,
    "prepare_prefill_inputs": _INPUTS,
    "combine_sampled_and_draft_tokens": _INPUTS,
    "expand_idx_mapping": _INPUTS,
    "get_num_sampled_and_rejected": _INPUTS,
    "post_update": _INPUTS,
    "post_update_num_computed_tokens": _INPUTS,
    "eagle_step_update_slot_mapping_and_metadata": Entry((_DRAFTER,)),
    "prepare_next_token_ids_padded": PROPOSER._replace(adapt=drafter.NextTokens),
    "prepare_inputs_padded": PROPOSER._replace(adapt=drafter.prepare_inputs_padded),
    "copy_and_expand_eagle_inputs": Entry(
        (_DRAFTER,), drafter.ExpandedInputs, "_copy_and_expand_eagle_inputs"
    ),
}
"""Operations that are Triton kernels or launch one, which the adapter `vllm_triton` offers."""

BLOCK_TABLE = Entry(("v1.worker.block_table",), V1Slots, "BlockTable")
_LISTS = Entry((_V0,), V0Slots, "compute_slot_mapping")

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
    "paged_attention": _OURS,
    "decode_attention": _OURS,
    "reshape_and_cache_flash": _OPERATORS,
    "XFormersAttentionImpl": _OPERATORS,
    "XFormersAttentionBackend": _OPERATORS,
    "batch_sequence": "vLLM's functions keep nothing between steps: each is judged by itself",
    "swap_blocks": _OPERATORS,
    "copy_blocks": _OPERATORS,
    "get_batch_indices_positions": "FlashInfer's: no vLLM has it",
    **dict.fromkeys(_OF_SGLANG, _SGLANG),
}
"""Reasons for the operations that no version offers."""


def _withheld(version: str) -> dict[str, str]:
    """Return reasons for names that the version has with another meaning."""
    if minor(version) == (0, 10):
        return {
            "AttentionMetadataBuilder": "the builder of vLLM 0.10 has no "
            "_init_reorder_batch_threshold",
        }
    gone = {
        "AttentionBackend": f"the backend of vLLM {version} has no get_state_cls and no "
        "make_metadata",
        "AttentionMetadata": f"the metadata class of vLLM {version} is empty",
    }
    if minor(version) == (0, 11):
        return gone
    return gone | {
        "AttentionMetadataBuilder": f"the builder of vLLM {version} has no use_cascade_attention",
        "build_slot_mapping": f"vLLM {version} computes slots in a Triton kernel",
        "compute_flashinfer_kv_metadata": f"a method of vLLM {version}'s builder for FlashInfer, "
        "which must be installed",
        "set_kv_cache_layout": f"vLLM {version} sets the layout by a method of its worker",
        **dict.fromkeys(KERNELS, _KERNEL.format(version=version)),
        **{name: _GONE.format(version=version, name=name) for name in _XFORMERS_CLASSES},
    }


def offered(version: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the operations of this vLLM by our names, and a reason for every other one."""
    found: dict[str, Any] = {}
    withheld = _withheld(version)
    lacking = {name: withheld.get(name) or reason for name, reason in _REASONS.items()}
    for name in names() - lacking.keys():
        entry = _slots(version) if name == "build_slot_mapping" else ENTRIES.get(name, _SAME_NAME)
        function = made(entry, name) if minor(version) >= entry.since else None
        if function is not None and name not in withheld:
            found[name] = function
        else:
            lacking[name] = withheld.get(name) or _GONE.format(version=version, name=name)
    return found, lacking


def names() -> set[str]:
    """Return all names that an operation or a step of a sequence calls."""
    return {name for operation in ALL.values() for name in operation.call.names(operation.name)}


def _slots(version: str) -> Entry:
    """Return the list form of 0.10, or the block table of later versions."""
    return _LISTS if minor(version) == (0, 10) else BLOCK_TABLE


def made(entry: Entry, name: str) -> Any:
    """Return the operation of the installed vLLM with our arguments, None without it."""
    original = find(entry.places, entry.name or name)
    if original is None or entry.adapt is None:
        return original
    return entry.adapt(original)
