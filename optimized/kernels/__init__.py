"""Triton kernels, one a file, each with the function that launches it.

Importing a kernel imports Triton, so entry points import it just before the launch.
"""

import triton

from ..dispatch import INTERPRETED

if INTERPRETED and isinstance(triton.language.zeros, triton.JITFunction):
    raise ImportError("TRITON_INTERPRET=1 was set after triton was imported; set it before")
