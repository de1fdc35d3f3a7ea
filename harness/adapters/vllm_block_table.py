"""Slot mapping by the block table of vLLM's V1 engine, the faster of the two in 0.10.

`attnproof bench --ops build_slot_mapping --candidate attnproof.harness.adapters.vllm_block_table`.
In 0.11 the adapter `vllm` offers it too.
"""

from __future__ import annotations

from attnproof.harness.adapters.vllm.catalogue import BLOCK_TABLE
from attnproof.harness.adapters.vllm.installed import UnsupportedVLLMError, find, minor, version
from attnproof.harness.adapters.vllm.slots import V1Slots

VERSION = version()
if minor(VERSION) == (0, 32):
    raise UnsupportedVLLMError(f"vLLM {VERSION} computes slots in a Triton kernel, for a GPU")
build_slot_mapping = V1Slots(find(BLOCK_TABLE.places, BLOCK_TABLE.name))
