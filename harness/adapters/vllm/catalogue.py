"""Catalogue of vLLM: the module of each operation by version, and reasons for the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from attnproof.harness.adapters.vllm import builders, functions
from attnproof.harness.adapters.vllm.functions import Adapted
from attnproof.harness.adapters.vllm.installed import find, minor
from attnproof.harness.adapters.vllm.metadata import UTILS
from attnproof.harness.adapters.vllm.slots import V0Slots, V1Slots
from attnproof.harness.operations import ALL

_V0 = "attention.backends.utils"
_ABSTRACT = ("attention.backends.abstract", "v1.attention.backend")
_XFORMERS = ("v1.attention.backends.xformers",)
_UBATCH = ("v1.worker.ubatch_utils", UTILS)
_MLA = "model_executor.layers.attention.mla_attention"
_REORDER = "reorder_batch_to_split_decodes_and_prefills"


class Entry(NamedTuple):
    """The place of one operation in vLLM."""

    places: tuple[str, ...]
    """Modules below `vllm` that may have it, by version."""
    adapt: Callable[[Any], Any] | None = None
    """Function that makes the operation take our arguments; None to offer it unchanged."""
    name: str = ""
    """Name in vLLM, "" if it equals ours."""


def _xformers_builder(cls: type[Any]) -> type[Any]:
    return builders.xformers_builder(cls, find((UTILS,), _REORDER))


ENTRIES: dict[str, Entry] = {
    "split_decodes_and_prefills": Entry((UTILS,), functions.split),
    _REORDER: Entry((UTILS,), functions.reorder),
    "_make_metadata_with_slice": Entry(_UBATCH, Adapted),
    "split_attn_metadata": Entry(_UBATCH, Adapted),
    "make_local_attention_virtual_batches": Entry((UTILS,), Adapted),
    "make_kv_sharing_fast_prefill_common_attn_metadata": Entry((UTILS,), Adapted),
    "create_fast_prefill_custom_backend": Entry((UTILS,), builders.fast_prefill_backend),
    "compute_causal_conv1d_metadata": Entry((UTILS,), functions.conv1d),
    "get_kv_cache_layout": Entry((UTILS,), functions.layout_reader),
    "get_per_layer_parameters": Entry((UTILS,), functions.layers),
    "is_all_cross_attn_metadata_set": Entry((_V0,), functions.cross_attention),
    "AttentionMetadataBuilder": Entry((UTILS, *_ABSTRACT[1:]), builders.v1_builder),
    "XFormersAttentionMetadataBuilder": Entry(_XFORMERS, _xformers_builder),
}
"""Operations whose arguments are adapted, or whose name is not enough to find them."""
_SAME_NAME = Entry((UTILS, *_UBATCH[:1], *_ABSTRACT, *_XFORMERS, _MLA, _V0))
"""Default: an operation that takes our arguments as they are, under our name."""

BLOCK_TABLE = Entry(("v1.worker.block_table",), V1Slots, "BlockTable")
_LISTS = Entry((_V0,), V0Slots, "compute_slot_mapping")

_GONE = "vLLM {version} has no {name}"
_OURS = "attnproof's own: no vLLM has it"
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
    }


def offered(version: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the operations of this vLLM by our names, and a reason for every other one."""
    found: dict[str, Any] = {}
    lacking = dict(_REASONS)
    withheld = _withheld(version)
    for name in _names() - lacking.keys():
        entry = _slots(version) if name == "build_slot_mapping" else ENTRIES.get(name, _SAME_NAME)
        made = _made(entry, name)
        if made is not None and name not in withheld:
            found[name] = made
        else:
            lacking[name] = withheld.get(name) or _GONE.format(version=version, name=name)
    return found, lacking


def _names() -> set[str]:
    """Return all names that an operation or a step of a sequence calls."""
    return {name for operation in ALL.values() for name in operation.call.names(operation.name)}


def _slots(version: str) -> Entry:
    """Return the list form of 0.10, or the block table of later versions."""
    return _LISTS if minor(version) == (0, 10) else BLOCK_TABLE


def _made(entry: Entry, name: str) -> Any:
    original = find(entry.places, entry.name or name)
    if original is None or entry.adapt is None:
        return original
    return entry.adapt(original)
