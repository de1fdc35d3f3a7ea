"""Further public bugs of SGLang, FlashInfer, LightLLM, vllm-ascend and vLLM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch

from attnproof.harness.strength.pairs.pair import Pair
from attnproof.reference.interface import PAD_SLOT_ID

_Break = Callable[..., Any]
PAIRS: Final[list[Pair]] = []
"""The pairs of this module."""


def _pair(
    id: str,  # noqa: A002
    operation: str,
    shown_by: str,
    part: str = "",
) -> Callable[[_Break], _Break]:
    """Add a pair: the decorated function takes the right one before its own arguments."""

    def add(wrong: _Break) -> _Break:
        mistake = (wrong.__doc__ or "").strip()

        def broken(right: Any) -> Any:
            return wrong(right) if isinstance(right, type) else partial(wrong, right)

        PAIRS.append(Pair(id, operation, part or operation, mistake, shown_by, broken))
        return wrong

    return add


@_pair(
    "vllm-project/vllm-ascend#14714",
    "CommonAttentionMetadata",
    "a crash when the batch shrank between two graph sizes",
)
def table_of_the_padded_batch(right: type[Any]) -> type[Any]:
    """`unpadded` leaves the rows of graph padding in the block table."""

    class CommonAttentionMetadata(right):  # type: ignore[misc]
        def unpadded(self, *args: Any, **kwargs: Any) -> Any:
            unpadded = super().unpadded(*args, **kwargs)
            return replace(unpadded, block_table_tensor=self.block_table_tensor)

    return CommonAttentionMetadata


@_pair(
    "vllm-project/vllm-ascend#6344",
    "rank_slot_mapping",
    "wrong outputs of decodes in mixed batches with context parallelism",
    "build_slot_mapping",
)
def owned_slots_first(right: _Break, *args: Any, cp_size: int = 1, **kwargs: Any) -> torch.Tensor:
    """The slots of the rank's own tokens stand together at the front of the mapping."""
    slots: torch.Tensor = right(*args, cp_size=cp_size, **kwargs)
    if cp_size > 1:
        own = slots[slots != PAD_SLOT_ID].clone()
        slots.fill_(PAD_SLOT_ID)
        slots[: len(own)] = own
    return slots


@_pair(
    "vllm-project/vllm-ascend#3572",
    "build_slot_mapping",
    "attention outputs that were all zero in a hybrid model",
)
def one_buffer_for_all(right: _Break, *args: Any, **kwargs: Any) -> torch.Tensor:
    """The slots of every group are written to one buffer, over those of the group before."""
    slots: torch.Tensor = right(*args, **kwargs)
    if kwargs.get("out") is not None or len(slots) > len(_SHARED):
        return slots
    _SHARED[: len(slots)] = slots
    return _SHARED[: len(slots)]


_SHARED: Final = torch.full((4096,), PAD_SLOT_ID, dtype=torch.int64)


@_pair(
    "ModelTC/LightLLM#998",
    "create_flashinfer_kv_indices",
    "illegal memory access with many tokens in the cache",
)
def product_of_32_bits(
    right: _Break,
    req_to_token: torch.Tensor,
    *args: Any,
    entry_page_size: int = 1,
) -> None:
    """The page is multiplied by its size in 32 bits."""
    right(req_to_token, *args, entry_page_size=entry_page_size)
    if entry_page_size > 1:
        indices, offsets = args[4], args[2]
        indices[: int(offsets[-1])] = indices[: int(offsets[-1])].int().to(indices.dtype)


@_pair(
    "sgl-project/sglang#8593",
    "create_flashinfer_kv_indices",
    "wrong outputs with pages above one token",
)
def pages_of_one_token(right: _Break, *args: Any, entry_page_size: int = 1) -> None:
    """Each entry of the table is taken for the slot of a token, whatever the page size."""
    table = args[0]
    if entry_page_size > 1:
        table = table.repeat_interleave(entry_page_size, 1)
    right(table, *args[1:], entry_page_size=1)


@_pair(
    "vllm-project/vllm#23737",
    "compute_flashinfer_kv_metadata",
    "a race that only long runs showed",
)
def offsets_that_are_still_copied(
    right: _Break, seq_lens_cpu: torch.Tensor, block_table: torch.Tensor, page_size: int
) -> tuple[torch.Tensor, ...]:
    """The offsets of the step before are returned where the copy has not arrived."""
    outputs: tuple[torch.Tensor, ...] = right(seq_lens_cpu, block_table, page_size)
    last = _LAST_OFFSETS.get(len(seq_lens_cpu))
    _LAST_OFFSETS[len(seq_lens_cpu)] = outputs[0]
    return outputs if last is None else (last, *outputs[1:])


_LAST_OFFSETS: dict[int, torch.Tensor] = {}


@_pair(
    "vllm-project/vllm#16274",
    "make_local_attention_virtual_batches",
    "a device assertion with a short context",
)
def table_narrower_than_a_chunk(
    right: _Break, attn_chunk_size: int, common_attn_metadata: Any, block_size: int = 0
) -> Any:
    """A block table that is narrower than a chunk is used as it is: pages are missing."""
    local_metadata = right(attn_chunk_size, common_attn_metadata, block_size)
    width = common_attn_metadata.block_table_tensor.shape[1]
    if width * block_size >= attn_chunk_size:
        return local_metadata
    return replace(local_metadata, block_table_tensor=local_metadata.block_table_tensor[:, :width])


@_pair(
    "vllm-project/vllm#49542",
    "split_attn_metadata",
    "a backend that read the field of the whole batch",
)
def fields_of_the_whole_batch(right: _Break, slices: Any, common_attn_metadata: Any) -> Any:
    """Optional fields with an entry a request are passed on whole."""
    children = right(slices, common_attn_metadata)
    whole = getattr(common_attn_metadata, "is_prefilling", None)
    if whole is None:
        return children
    return [replace(child, is_prefilling=whole) for child in children]
