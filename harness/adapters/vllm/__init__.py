"""The installed vLLM as a candidate: `attnproof verify --candidate vllm`.

The module has an operation's name if this version of vLLM has the operation and it runs
on a CPU; NOT_OFFERED gives a reason for every other one. Importing the module raises
ImportError with one line if vLLM is missing or its version is not supported.
"""

from __future__ import annotations

from attnproof.harness.adapters.vllm.catalogue import offered
from attnproof.harness.adapters.vllm.installed import version

VERSION = version()
"""Release of the installed vLLM."""
_operations, NOT_OFFERED = offered(VERSION)
globals().update(_operations)
