"""Weighted lengths: a result of floats, which is compared with a tolerance."""

from typing import Annotated

import torch

from attnproof.define import Array, SeqLens, operation

Weights = Annotated[torch.Tensor, Array("data", ("R",))]
Weighted = Annotated[torch.Tensor, Array("data", ("R",), tolerance=1e-6)]


@operation(independent=True)
def weighted_lengths(seq_lens: SeqLens, weights: Weights) -> Weighted:
    """Return the length of each row times its weight, float32."""
    # In float64: the tolerance is for the candidate alone.
    return seq_lens.double() * weights.double()
