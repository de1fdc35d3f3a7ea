"""The installed SGLang as a candidate: `attnproof verify --candidate sglang`.

In the lane cpu its functions of torch are offered, in the lane interpreter its Triton kernels,
launched as SGLang launches them. NOT_OFFERED gives a reason for every other operation.
Importing the module raises ImportError with one line if SGLang is missing.
"""

from __future__ import annotations

from attnproof.harness.adapters.sglang.catalogue import offered
from attnproof.harness.adapters.single_engines import interprets, version_of

VERSION = version_of("sglang", "SGLang", "sglang")
"""Release of the installed SGLang."""
_operations, NOT_OFFERED = offered(interpreted=interprets())
globals().update(_operations)
