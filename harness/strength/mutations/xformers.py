"""Mistakes in the XFormers backend: attributes of a layer and state of a builder (section 8)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attnproof.harness.strength.mutation import mutation

_IMPL, _BUILDER = "XFormersAttentionImpl", "XFormersAttentionMetadataBuilder"
_SPLIT = ("num_decodes", "num_prefills", "num_decode_tokens", "num_prefill_tokens")


@mutation(
    _IMPL,
    diagnoses=(
        "does not follow from the arguments",
        "is not attention over the batch",
    ),
    both=("consumer", "invariants"),
    examined="",
    boundary="window of 16 (K24, E14)",
)
def a_window_of_one_key_too_many(impl: Any) -> Any:
    """A sliding window takes one key too many."""

    class XFormersAttentionImpl(impl):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            left, right = vars(self)["sliding_window"]
            self.sliding_window = (left + (left >= 0), right)

    return XFormersAttentionImpl


@mutation(
    _IMPL,
    diagnoses=(
        "does not follow from the arguments",
        "is not attention over the batch",
    ),
    both=("consumer", "invariants"),
    examined="",
    boundary="soft cap (K24, E14)",
)
def no_soft_cap(impl: Any) -> Any:
    """Scores reach the softmax without the soft cap."""

    class XFormersAttentionImpl(impl):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.logits_soft_cap = 0

    return XFormersAttentionImpl


@mutation(_BUILDER, diagnoses=("off by one token", "wrong"), both=("consumer", "invariants"))
def split_kept_for_a_step_of_the_same_size(builder: Any) -> Any:
    """A builder keeps its split for later steps of as many rows and tokens."""

    class XFormersAttentionMetadataBuilder(builder):
        def build(self, *args: Any, **kwargs: Any) -> Any:
            metadata = super().build(*args, **kwargs)
            md = kwargs.get("common_attn_metadata") or args[1]
            kept = self.__dict__.setdefault("kept", {})
            split = {name: getattr(metadata, name) for name in _SPLIT}
            return replace(metadata, **kept.setdefault((md.num_reqs, md.num_actual_tokens), split))

    return XFormersAttentionMetadataBuilder


@mutation(
    _BUILDER,
    diagnoses=("does not agree with the batch",),
    both=("consumer", "invariants"),
    examined="",
    boundary="as many tokens as rows, one of them padding (E23)",
)
def mask_offsets_kept_for_as_many_decodes(builder: Any) -> Any:
    """A builder keeps the mask's query offsets for later steps of as many decodes and tokens."""

    class XFormersAttentionMetadataBuilder(builder):
        def build(self, *args: Any, **kwargs: Any) -> Any:
            metadata = super().build(*args, **kwargs)
            if metadata.attn_bias is not None:
                kept = self.__dict__.setdefault("kept_offsets", {})
                key = metadata.num_decodes, metadata.num_decode_tokens
                metadata.attn_bias.q_seqinfo = kept.setdefault(key, metadata.attn_bias.q_seqinfo)
            return metadata

    return XFormersAttentionMetadataBuilder
