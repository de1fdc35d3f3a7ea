"""Fast implementations of SPEC.md: numba loops on the host, Triton kernels on a device.

The public names are those of `reference`; results are equal element by element. The device
of the tensors selects the implementation (`attnproof.optimized.dispatch`). Input is trusted
unless checks are on: `with attnproof.optimized.checking.checked():`. numba and Triton are
imported by the first call that needs them.
"""

import sys

from attnproof.reference.checks import *
from attnproof.reference.checks import __all__ as _checks
from attnproof.reference.interface import *
from attnproof.reference.interface import __all__ as _interface
from attnproof.reference.shared import *
from attnproof.reference.shared import __all__ as _shared

from .batch_regions import *
from .batch_split import *
from .block_tables import *
from .cache_write import *
from .causal_conv1d import *
from .context_parallel import *
from .dcp_indices import *
from .drafter import *
from .drafter_batches import *
from .encoder_decoder import *
from .fast_prefill import *
from .graph_state import *
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
from .sequence_slots import *
from .slot_mapping import *
from .sparse_indices import *
from .spec_decode import *
from .token_pool import *
from .ubatch import *
from .ubatch_slices import *
from .xformers_backend import *

_own = [
    name
    for path, module in tuple(sys.modules.items())
    if path.rpartition(".")[0] == __name__
    for name in getattr(module, "__all__", ())
]
__all__ = [*dict.fromkeys([*_checks, *_interface, *_shared, *_own])]  # noqa: PLE0604
