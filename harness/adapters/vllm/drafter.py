"""Functions of section 14 for vLLM, whose proposer has some of them as methods.

A proposer is made without `__init__`, which needs an engine, and gets the attributes that the
method reads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from attnproof.harness.adapters.vllm.metadata import CONVERSION, theirs
from attnproof.harness.interfaces.functions import Adapted, Arguments
from attnproof.harness.model.call import Thunk


def prepare_inputs(proposer_class: type[Any]) -> Adapted:
    """Adapt the proposer's method."""

    def convert(metadata: Any, *others: Any) -> Arguments:
        tokens = np.arange(metadata.num_actual_tokens, dtype=np.int32)
        proposer = _proposer(proposer_class, token_arange_np=tokens)
        return (proposer, theirs(metadata), *others), {}

    return Adapted(proposer_class.prepare_inputs, CONVERSION, convert)


def prepare_inputs_padded(proposer_class: type[Any]) -> Adapted:
    """Adapt the proposer's method."""

    def convert(metadata: Any, *others: Any) -> Arguments:
        return (_proposer(proposer_class), theirs(metadata), *others), {}

    return Adapted(proposer_class.prepare_inputs_padded, CONVERSION, convert)


def _proposer(proposer_class: type[Any], **attributes: Any) -> Any:
    """Return a proposer with these attributes only."""
    proposer = object.__new__(proposer_class)
    proposer.__dict__.update(attributes)
    return proposer


def compute_new_slot_mapping(function: Callable[..., Any]) -> Adapted:
    """Adapt the function, which takes a block table whose rows have no gaps, as an engine's."""

    def convert(metadata: Any, *others: Any) -> Arguments:
        converted = theirs(metadata)
        table = converted.block_table_tensor
        if table.ndim == 2 and table.stride(1) == 1:
            converted = converted.replace(block_table_tensor=table.contiguous())
        return (converted, *others), {}

    return Adapted(function, CONVERSION, convert)


class NextTokens:
    """The proposer's `prepare_next_token_ids_padded`, with backup tokens that are ready."""

    __name__ = "prepare_next_token_ids_padded"

    def __init__(self, proposer_class: type[Any]) -> None:
        self._class = proposer_class

    def __call__(self, *args: Any) -> Any:
        """Return the next tokens and the numbers of valid ones."""
        return self.bind(*args)()

    def bind(
        self,
        sampled_token_ids: torch.Tensor,
        discard_request_mask: torch.Tensor,
        backup_next_token_ids: torch.Tensor,
        vocab_size: int,
    ) -> Thunk:
        """Return the method with a batch of no requests, which would fill the backup tokens."""
        backup = SimpleNamespace(gpu=backup_next_token_ids, copy_to_gpu=lambda _rows: None)
        proposer = _proposer(self._class, backup_next_token_ids=backup)
        rows = SimpleNamespace(num_reqs=0, vocab_size=vocab_size)
        return partial(
            proposer.prepare_next_token_ids_padded,
            sampled_token_ids,
            {},
            rows,
            discard_request_mask,
        )


class ExpandedInputs:
    """The launch of `copy_and_expand_eagle_inputs_kernel`, with the proposer's grid."""

    __name__ = "copy_and_expand_eagle_inputs"

    def __init__(self, launch: Callable[..., None]) -> None:
        self._launch = launch

    def __call__(self, *args: Any) -> None:
        """Write the outputs."""
        self.bind(*args)()

    def bind(self, *args: Any) -> Thunk:
        """Return the launch; the proposer takes its tiles from the longest query."""
        *others, slots, shift = args
        offsets = others[9]
        longest = int(offsets.diff().max()) if len(offsets) > 1 else 0
        tokens = max(1, longest + slots - int(shift))
        tile = min(256, 1 << (tokens - 1).bit_length())
        return partial(
            self._launch,
            *others,
            slots,
            # The interpreter of Triton 3.7 makes a 32-bit value of a bool, and refuses it.
            int(shift) if isinstance(shift, bool) else shift,
            BLOCK_SIZE_TOKENS=tile,
            batch_size=len(offsets) - 1,
            num_blocks=-(-tokens // tile),
        )
