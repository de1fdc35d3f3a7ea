"""The executable specification: every operation of SPEC.md, in plain loops on the CPU."""

import sys

from .batch_regions import *
from .batch_split import *
from .block_tables import *
from .cache_write import *
from .causal_conv1d import *
from .checks import *
from .context_parallel import *
from .dcp_indices import *
from .drafter import *
from .drafter_batches import *
from .fast_prefill import *
from .interface import *
from .kernel_blocks import *
from .kv_cache import *
from .local_attention import *
from .metadata_builder import *
from .mm_prefix import *
from .page_allocation import *
from .page_tables import *
from .paged_attention import *
from .persistent_batch import *
from .request_indices import *
from .runner_inputs import *
from .shared import *
from .slot_mapping import *
from .sparse_indices import *
from .token_pool import *
from .ubatch import *
from .ubatch_slices import *
from .xformers_backend import *

__all__ = [
    name
    for path, module in tuple(sys.modules.items())
    if path.rpartition(".")[0] == __name__
    for name in module.__all__
]
