"""The installed vLLM as a candidate: `attnproof verify --candidate vllm`.

The module has an operation's name if this version of vLLM has the operation and it runs
on a CPU; NOT_OFFERED says of every other why not. Importing it raises ImportError, one
line, where vLLM is missing or of a version that nobody has tried.
"""

from __future__ import annotations

from attnproof.harness.adapters.vllm.catalogue import offered
from attnproof.harness.adapters.vllm.installed import version

VERSION = version()
"""Release of the installed vLLM."""
_found, NOT_OFFERED = offered(VERSION)
globals().update(_found)
