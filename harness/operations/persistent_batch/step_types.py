"""Types of the parameters of a `batch_sequence`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from attnproof.harness.model.case import Count
from attnproof.harness.operations.shared.params import Counts, sequence_params

_SIZE = Annotated[int, msgspec.Meta(ge=0, le=1024)]
BATCH_PARAMS = sequence_params(
    {
        "add": [("blocks", Count), ("tokens", Count)],
        "resume": [("blocks", Count), ("tokens", Count)],
        "append": [("which", Count), ("blocks", Count)],
        "remove": [("which", Count)],
        "condense": [],
        "swap": [("i", Count), ("j", Count)],
        "build": [("lens", Counts), ("pad_reqs", Count), ("pad_tokens", Count)],
        "reorder": [("lens", Counts), ("threshold", Count)],
        "split": [("threshold", Count)],
        "advance": [],
        "reject": [("tokens", Counts)],
        "dummy": [("reqs", Count), ("tokens", Count)],
        "slots": [],
        "cut": [("at", Count)],
        "local": [("blocks", Count)],
        "bad": [("kind", Count)],
    },
    [(name, _SIZE) for name in ("max_num_reqs", "max_num_tokens", "max_num_blocks", "block_size")],
)
"""Sizes of the buffers, and the steps."""
