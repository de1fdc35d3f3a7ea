"""The operations of SPEC.md made fast: numba loops on the host, Triton kernels on a device.

The public names are those of `reference`; results are equal element by element. Where
the tensors lie decides who computes them (`optimized.dispatch`). Neither numba nor
Triton is imported before the first call that needs it.
"""

from reference.interface import *  # noqa: F403
from reference.interface import __all__ as _interface

from .batch_split import (
    reorder_batch_to_split_decodes_and_prefills,
    split_decodes_and_prefills,
)
from .cache_write import reshape_and_cache_flash
from .causal_conv1d import compute_causal_conv1d_metadata
from .fast_prefill import (
    create_fast_prefill_custom_backend,
    make_kv_sharing_fast_prefill_common_attn_metadata,
)
from .kv_cache import copy_blocks, swap_blocks
from .local_attention import make_local_attention_virtual_batches
from .metadata_builder import CommonMetadataBuilder
from .paged_attention import decode_attention, paged_attention
from .persistent_batch import PersistentBatch
from .slot_mapping import (
    _compute_slot_mapping_numpy,
    _compute_slot_mapping_python,
    build_slot_mapping,
    compute_slot_mapping,
)
from .ubatch import (
    _make_metadata_with_slice,
    slice_query_start_locs,
    split_attn_metadata,
)
from .xformers_backend import (
    XFormersAttentionBackend,
    XFormersAttentionImpl,
    XFormersAttentionMetadataBuilder,
)

__all__ = [  # noqa: PLE0604
    *_interface,
    "CommonMetadataBuilder",
    "PersistentBatch",
    "XFormersAttentionBackend",
    "XFormersAttentionImpl",
    "XFormersAttentionMetadataBuilder",
    "_compute_slot_mapping_numpy",
    "_compute_slot_mapping_python",
    "_make_metadata_with_slice",
    "build_slot_mapping",
    "compute_causal_conv1d_metadata",
    "compute_slot_mapping",
    "copy_blocks",
    "create_fast_prefill_custom_backend",
    "decode_attention",
    "make_kv_sharing_fast_prefill_common_attn_metadata",
    "make_local_attention_virtual_batches",
    "paged_attention",
    "reorder_batch_to_split_decodes_and_prefills",
    "reshape_and_cache_flash",
    "slice_query_start_locs",
    "split_attn_metadata",
    "split_decodes_and_prefills",
    "swap_blocks",
]
