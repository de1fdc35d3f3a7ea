"""Interfaces of engines: the same operations, said in each engine's classes."""

from __future__ import annotations

from attnproof.harness.interfaces.fitting import (
    with_prompts,
    without_later_fields,
    without_optional_fields,
    without_progress,
)
from attnproof.harness.interfaces.functions import adapt_earlier, adapt_rows, adapt_v32
from attnproof.harness.interfaces.interface import Interface
from attnproof.harness.interfaces.offering import offered_as as offered_as

_PUBLISHED = frozenset(str(section) for section in range(1, 10))
_LATER_SECTIONS = frozenset(("10", "11", "12", "13", "14", "16", "17", "18", "20", "22"))
_STILL_THERE = frozenset(
    (
        "CommonAttentionMetadata",
        "AttentionBackend",
        "AttentionMetadata",
        "AttentionMetadataBuilder",
        "split_decodes_and_prefills",
        "reorder_batch_to_split_decodes_and_prefills",
        "slice_query_start_locs",
        "_make_metadata_with_slice",
        "split_attn_metadata",
        "make_local_attention_virtual_batches",
        "make_kv_sharing_fast_prefill_common_attn_metadata",
        "create_fast_prefill_custom_backend",
        "subclass_attention_backend",
        "subclass_attention_metadata",
        "reshape_query_for_spec_decode",
        "reshape_attn_output_for_spec_decode",
        "compute_causal_conv1d_metadata",
        "build_slot_mapping",
        "get_per_layer_parameters",
        "infer_global_hyperparameters",
        "get_mla_dims",
        "reshape_and_cache_flash",
        "swap_blocks",
        "copy_blocks",
    )
)
"""Operations of sections 1 to 9 that vLLM 0.32 has."""

DEFAULT = "any"
"""Interface of a candidate that declares none and names no engine's class."""
INTERFACES: dict[str, Interface] = {
    interface.name: interface
    for interface in (
        Interface(
            name=DEFAULT,
            engine="signatures of vLLM 0.11, batches of every release",
            sections=_PUBLISHED | _LATER_SECTIONS | {"15"},
            adapt=adapt_rows,
        ),
        Interface(
            name="vllm-0.10",
            engine="vLLM 0.10",
            sections=_PUBLISHED,
            fit=without_progress,
            adapt=adapt_earlier,
        ),
        Interface(
            name="vllm-0.11",
            engine="vLLM 0.11",
            sections=_PUBLISHED,
            operations=frozenset(("get_dcp_local_seq_lens",)),
            fit=without_later_fields,
            adapt=adapt_earlier,
        ),
        Interface(
            name="vllm-0.32",
            engine="vLLM 0.32",
            sections=_LATER_SECTIONS,
            operations=_STILL_THERE,
            fit=with_prompts,
            adapt=adapt_v32,
        ),
        Interface(
            name="sglang-0.5",
            engine="SGLang 0.5 and FlashInfer",
            sections=frozenset(("15",)),
            operations=frozenset(("make_local_attention_virtual_batches",)),
            fit=without_optional_fields,
        ),
    )
}


def interfaces_of(name: str, section: str) -> list[str]:
    """Return the names of the engines' interfaces that have an operation."""
    engines = (interface for interface in INTERFACES.values() if interface.name != DEFAULT)
    return [interface.name for interface in engines if interface.has(name, section)]
