"""The operations of SPEC.md, one file a section; `ALL` has them by name."""

from attnproof.harness.model.operation import Operation
from attnproof.harness.operations.attention import cache_write, decode_attention, paged_attention
from attnproof.harness.operations.batch import (
    batch_split,
    causal_conv1d,
    local_attention,
    padding,
    spec_decode,
)
from attnproof.harness.operations.fast_prefill import (
    backend as fast_prefill_backend,
)
from attnproof.harness.operations.fast_prefill import (
    class_factories,
    fast_prefill,
)
from attnproof.harness.operations.kv_cache import (
    copy_blocks,
    layout_sequence,
    swap_blocks,
)
from attnproof.harness.operations.kv_cache import (
    layout as kv_cache_layout,
)
from attnproof.harness.operations.model import backend_classes, layer_parameters, mla_dims
from attnproof.harness.operations.persistent_batch import (
    persistent_batch,
)
from attnproof.harness.operations.persistent_batch import (
    sequence as batch_sequence,
)
from attnproof.harness.operations.slots import sequence_slots, slot_mapping
from attnproof.harness.operations.ubatch import ubatch
from attnproof.harness.operations.v0 import (
    builder_sequence,
    encoder_decoder,
    graph_sequence,
    graph_state,
    metadata_builder,
)
from attnproof.harness.operations.xformers import (
    backend as xformers_backend,
)
from attnproof.harness.operations.xformers import (
    builder as xformers_builder,
)
from attnproof.harness.operations.xformers import (
    impl as xformers_impl,
)
from attnproof.harness.operations.xformers import (
    metadata as xformers_metadata,
)

_FILES = (
    padding,
    batch_split,
    ubatch,
    local_attention,
    slot_mapping,
    sequence_slots,
    fast_prefill,
    fast_prefill_backend,
    class_factories,
    spec_decode,
    causal_conv1d,
    swap_blocks,
    copy_blocks,
    kv_cache_layout,
    layout_sequence,
    layer_parameters,
    mla_dims,
    encoder_decoder,
    metadata_builder,
    graph_state,
    builder_sequence,
    graph_sequence,
    backend_classes,
    persistent_batch,
    batch_sequence,
    cache_write,
    paged_attention,
    decode_attention,
    xformers_metadata,
    xformers_builder,
    xformers_impl,
    xformers_backend,
)
_IN_ORDER = sorted((op for file in _FILES for op in file.OPERATIONS), key=lambda op: op.section)
ALL: dict[str, Operation] = {operation.name: operation for operation in _IN_ORDER}
