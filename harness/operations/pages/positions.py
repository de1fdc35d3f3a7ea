"""Operation of SPEC.md section 15: the positions of the new tokens of a batch.

Bug classes: positions counted from 0 behind a prefix, first indices that include the
request itself, a tile that is left out (K19).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn
from attnproof.harness.model.relations import Joined, Relations
from attnproof.harness.operations.derived.derive import Example, derive_built_in
from attnproof.reference import compute_position as reference

_SUM = "extend_seq_lens_sum"


def _examples() -> Iterator[Example]:
    mixed = make_batch([1, 2, 0, 3], [4, 0, 3, 1], 4)
    yield "no prefixes given", mixed, {"with_extend_prefix_lens": False}


compute_position = derive_built_in(
    reference,
    section="15",
    summary="positions of the new tokens, and each request's first one",
    examples=_examples,
    faults={
        "another sum": Fault(_SUM, lambda total: total + 1, cpu_only=True),
        "prefixes of another batch": Fault(
            "extend_prefix_lens",
            lambda _, lengths: torch.cat([lengths, lengths]),
            reads=("extend_seq_lens",),
            applies=lambda case: case.num_tokens > 0,
            any_field=True,
        ),
    },
    # Without prefixes the positions of a chunk begin at 0: entries, not those of a token.
    relations=Relations(
        joined={"positions": Joined.ENTRIES, "extend_start_loc": Joined.TOKEN_INDICES}
    ),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (compute_position,)
