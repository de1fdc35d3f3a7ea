"""Slot mapping by the block table of vLLM's V1 engine, faster than the list form of V0.

`attnproof bench --ops build_slot_mapping --candidate attnproof.harness.adapters.vllm_block_table`
times it. In 0.10 the adapter `vllm` offers the list form, in 0.11 this one.
"""

from __future__ import annotations

from attnproof.harness.adapters.vllm.catalogue import BLOCK_TABLE
from attnproof.harness.adapters.vllm.installed import UnsupportedVLLMError, find, minor, version
from attnproof.harness.adapters.vllm.slots import V1Slots

VERSION = version()
if minor(VERSION) == (0, 32):
    raise UnsupportedVLLMError(f"vLLM {VERSION} computes slots in a Triton kernel, for a GPU")
build_slot_mapping = V1Slots(find(BLOCK_TABLE.places, BLOCK_TABLE.name))
