"""Mistakes in the XFormers backend: views of its metadata and a layer's attention (section 8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from attnproof import reference
from attnproof.harness.strength.mutation import mutation

_IMPL, _METADATA = "XFormersAttentionImpl", "XFormersAttentionMetadata"
_BUILDER = "XFormersAttentionMetadataBuilder"
_SPLIT = ("num_decodes", "num_prefills", "num_decode_tokens", "num_prefill_tokens")


@mutation(
    _IMPL,
    "K24b",
    source="erratum E14",
    diagnoses=(
        *("sliding window ignored in decodes", "soft cap ignored in decodes"),
        "sliding window and soft cap ignored in decodes",
    ),
    both=("consumer", "invariants"),
)
def decodes_of_a_step(impl: Any) -> Any:
    """In a step's `forward` decodes ignore sliding window and soft cap."""

    return _attending_again(impl, lambda _impl, _decodes, _block_size: {})


def _attending_again(impl: Any, change: Callable[[Any, Any, int], dict[str, Any]]) -> Any:
    """Return a subclass that attends once more for the decodes, without window and soft cap.

    `change` returns changed arguments of `paged_attention` for the instance, its decodes and the
    block size.
    """

    class XFormersAttentionImpl(impl):
        def forward(
            self,
            layer: Any,
            query: Any,
            key: Any,
            value: Any,
            kv_cache: Any,
            attn_metadata: Any,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            tensors = (query, key, value, kv_cache, attn_metadata)
            returned = super().forward(layer, *tensors, *args, **kwargs)
            decodes = attn_metadata.decode_metadata if attn_metadata is not None else None
            if decodes is None:
                return returned
            tokens = slice(0, decodes.num_actual_tokens)
            arguments = {
                "query": query[tokens],
                "key_cache": kv_cache[0],
                "value_cache": kv_cache[1],
                "query_start_loc": decodes.query_start_loc,
                "seq_lens": decodes.seq_lens,
                "block_table": decodes.block_table,
                "scale": self.scale,
                "max_query_len": decodes.max_query_len,
                "max_seq_len": decodes.max_seq_len,
                "k_scale": layer._k_scale,
                "v_scale": layer._v_scale,
                "out": returned.view(query.shape)[tokens],
            }
            changed: dict[str, Any] = change(self, decodes, kv_cache.shape[2])
            reference.paged_attention(**arguments | changed)
            return returned

    return XFormersAttentionImpl


@mutation(
    _METADATA,
    "K25",
    source="vllm-project/vllm#9026",
    diagnoses=("cut with the wrong length",),
    both=("consumer", "invariants"),
    boundary="two queries a decode (K25)",
)
def rows_for_tokens(metadata: Any) -> Any:
    """The view of the prefills cuts its slots at a number of rows, not of tokens."""

    class XFormersAttentionMetadata(metadata):
        @property
        def prefill_metadata(self) -> Any:
            view = super().prefill_metadata
            if view is None or view.slot_mapping.shape[0] != self.num_prefill_tokens:
                return view
            # Rows and tokens are equally many if each decode has one token.
            slots = self.slot_mapping[self.num_decodes : self.num_actual_tokens]
            if slots.shape[0] != self.num_prefill_tokens:
                self._prefills = replace(view, slot_mapping=slots)
            return self._prefills

    return XFormersAttentionMetadata


@mutation(
    _IMPL,
    "K25b",
    source="vllm-project/vllm#9026",
    diagnoses=("a slot read that no token was written to", "wrong attention in decodes"),
    both=("consumer", "invariants"),
)
def keys_of_the_block(impl: Any) -> Any:
    """Decodes attend to all keys of their last block, unwritten ones included."""

    def to_whole_blocks(impl: Any, decodes: Any, block_size: int) -> dict[str, Any]:
        return {
            "seq_lens": -(-decodes.seq_lens // block_size) * block_size,
            "max_seq_len": decodes.max_seq_len + block_size,
            "sliding_window": impl.window,
            "logits_soft_cap": impl.logits_soft_cap,
        }

    return _attending_again(impl, to_whole_blocks)


@mutation(
    _METADATA,
    diagnoses=(
        "has not the lengths of its rows",
        "sees ",
    ),
    both=("consumer", "invariants"),
    examined="both",
)
def a_view_that_is_not_rebased(metadata: Any) -> Any:
    """The view of the prefills has the lengths of the batch's first rows."""

    class XFormersAttentionMetadata(metadata):
        @property
        def prefill_metadata(self) -> Any:
            view = super().prefill_metadata
            if view is not None and self.num_decodes:
                view.seq_lens = self.seq_lens[: self.num_prefills]
            return view

    return XFormersAttentionMetadata


@mutation(
    _IMPL,
    diagnoses=(
        "does not follow from the arguments",
        "is not attention over the batch",
    ),
    both=("consumer", "invariants"),
    examined=None,
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
    examined=None,
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
            made = super().build(*args, **kwargs)
            md = kwargs.get("common_attn_metadata") or args[1]
            kept = self.__dict__.setdefault("kept", {})
            split = {name: getattr(made, name) for name in _SPLIT}
            return replace(made, **kept.setdefault((md.num_reqs, md.num_actual_tokens), split))

    return XFormersAttentionMetadataBuilder


@mutation(
    _BUILDER,
    diagnoses=("does not agree with the batch",),
    both=("consumer", "invariants"),
    examined=None,
    boundary="as many tokens as rows, one of them padding (E23)",
)
def mask_offsets_kept_for_as_many_decodes(builder: Any) -> Any:
    """A builder keeps the mask's query offsets for later steps of as many decodes and tokens."""

    class XFormersAttentionMetadataBuilder(builder):
        def build(self, *args: Any, **kwargs: Any) -> Any:
            made = super().build(*args, **kwargs)
            if made.attn_bias is not None:
                kept = self.__dict__.setdefault("kept_offsets", {})
                key = made.num_decodes, made.num_decode_tokens
                made.attn_bias.q_seqinfo = kept.setdefault(key, made.attn_bias.q_seqinfo)
            return made

    return XFormersAttentionMetadataBuilder


@mutation(_BUILDER, diagnoses=("the opposite answer",), both=("invariants",))
def reordered_by_query_lengths_alone(builder: Any) -> Any:
    """A batch of short rows alone, or of long ones, is taken to be in order, without progress."""

    class XFormersAttentionMetadataBuilder(builder):
        def reorder_batch(self, input_batch: Any, scheduler_output: Any) -> bool:
            tokens = scheduler_output.num_scheduled_tokens
            short = [tokens.get(req_id, 0) <= 1 for req_id in input_batch.req_ids]
            if all(short) or not any(short):
                return False
            return bool(super().reorder_batch(input_batch, scheduler_output))

    return XFormersAttentionMetadataBuilder
