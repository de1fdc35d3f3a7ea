"""Slot mapping by the block table of vLLM's V1 engine, faster than the list form of V0.

`attnproof bench --ops build_slot_mapping --candidate attnproof.harness.adapters.vllm_block_table`
times it. In 0.10 the adapter `vllm` offers the list form, in 0.11 this one.
"""

from __future__ import annotations

from attnproof.harness.adapters.vllm.catalogue import BLOCK_TABLE, UnfitError, adapted
from attnproof.harness.adapters.vllm.installed import UnsupportedVLLMError, version

VERSION = version()
try:
    build_slot_mapping = adapted(BLOCK_TABLE, "build_slot_mapping", VERSION)
except UnfitError as reason:
    raise UnsupportedVLLMError(str(reason)) from None
