"""K23: layers with different windows meet an assertion where flags were wanted."""

from __future__ import annotations

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug
from attnproof.reference.interface import PerLayerParameters

BUG = Bug(
    "K23",
    "infer_global_hyperparameters",
    "vllm-project/vllm#25924",
    ("raises AssertionError on good input",),
)


def infer_global_hyperparameters(
    per_layer_params: dict[str, PerLayerParameters],
) -> PerLayerParameters:
    """Takes it that all layers of a model have one window."""
    made = reference.infer_global_hyperparameters(per_layer_params)
    assert made.has_same_window_lefts, "all layers must have the same window"
    return made
