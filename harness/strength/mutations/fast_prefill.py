"""Mistakes in the metadata of KV-sharing fast prefill (SPEC.md section 6)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attnproof.harness.strength.mutation import mutation
from attnproof.reference.interface import KV_SHARING_FAST_PREFILL_METADATA_FIELDS

_BACKEND = "create_fast_prefill_custom_backend"
_LOGITS = tuple(name for name, *_ in KV_SHARING_FAST_PREFILL_METADATA_FIELDS)
_FAST_PREFILL = "make_kv_sharing_fast_prefill_common_attn_metadata"


@mutation(
    _FAST_PREFILL,
    "K20",
    source="vllm-project/vllm#28537",
    diagnoses=("raises AssertionError on good input",),
    one=("errors",),
)
def dummy_run(make: Any, common_attn_metadata: Any) -> Any:
    """An assertion demands logits indices of a batch with prefills; a dummy run has none."""
    made = make(common_attn_metadata)
    if common_attn_metadata.max_query_len != 1:
        assert common_attn_metadata.logits_indices_padded is not None
    return made


@mutation(
    _FAST_PREFILL,
    "K21",
    source="vllm-project/vllm#51738",
    diagnoses=("reads a copy to the host before it has arrived",),
    one=("determinism",),
    both=(),
)
def unwaited_copy(make: Any, common_attn_metadata: Any) -> Any:
    """Offsets are copied to the host without a wait and read at once."""
    made = make(common_attn_metadata)
    if made is common_attn_metadata:
        return made
    # Right on the CPU, and on a GPU as long as something else waits.
    starts = made.query_start_loc.to("cpu", non_blocking=True)
    return replace(
        made,
        query_start_loc_cpu=starts.to(made.query_start_loc_cpu.dtype),
        num_actual_tokens=int(starts[-1]),
        max_query_len=max(starts.diff().tolist(), default=0),
    )


@mutation(
    _FAST_PREFILL,
    diagnoses=(
        "loses keys",
        "sees too few keys",
    ),
    both=("consumer", "invariants"),
    examined="both",
)
def keys_reduced_with_the_queries(make: Any, common_attn_metadata: Any) -> Any:
    """Sequence lengths lose the queries that fast prefill leaves out."""
    made = make(common_attn_metadata)
    if made is common_attn_metadata:
        return made
    lens = made.num_computed_tokens_cpu + made.query_start_loc_cpu.diff()
    return replace(made, seq_lens=lens.to(made.seq_lens), seq_lens_cpu=lens.to(made.seq_lens_cpu))


@mutation(
    _BACKEND,
    diagnoses=("field that should not be set", "is not that of the batch"),
    both=("invariants", "purity"),
    tokens=28,
    examined=None,
    boundary="a dummy run between two steps",
)
def logits_of_an_earlier_step(create: Any, prefix: str, backend: Any) -> Any:
    """A step without logits indices gets those of the step before it."""
    made = create(prefix, backend)

    class Builder(made.get_builder_cls()):  # type: ignore[misc]
        def build(self, *args: Any, **kwargs: Any) -> Any:
            metadata = super().build(*args, **kwargs)
            given = {name: getattr(metadata, name) for name in _LOGITS}
            kept = self.__dict__.setdefault("kept", {})
            kept |= {name: value for name, value in given.items() if value is not None}
            for name, value in kept.items():
                object.__setattr__(metadata, name, value)
            return metadata

    members = {"get_builder_cls": staticmethod(lambda: Builder)}
    return type(made.__name__, (made,), members)
