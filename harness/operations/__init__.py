"""The operations of SPEC.md, one file a section; `ALL` has them by name."""

from harness.model.operation import Operation
from harness.operations import (
    batch_sequence,
    batch_split,
    causal_conv1d,
    class_factories,
    encoder_decoder,
    fast_prefill,
    graph_state,
    kv_cache,
    kv_cache_layout,
    layer_parameters,
    layout_sequence,
    local_attention,
    metadata_builder,
    mla_dims,
    padding,
    persistent_batch,
    sequence_slots,
    slot_mapping,
    spec_decode,
    ubatch,
)

_FILES = (
    padding,
    batch_split,
    ubatch,
    local_attention,
    slot_mapping,
    sequence_slots,
    fast_prefill,
    class_factories,
    spec_decode,
    causal_conv1d,
    layout_sequence,
    kv_cache,
    kv_cache_layout,
    layer_parameters,
    mla_dims,
    encoder_decoder,
    metadata_builder,
    graph_state,
    persistent_batch,
    batch_sequence,
)
ALL: dict[str, Operation] = {op.name: op for file in _FILES for op in file.OPERATIONS}
