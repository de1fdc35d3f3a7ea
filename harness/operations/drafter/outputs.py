"""Outputs of an operation that returns a drafter's batch, and what a kernel makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from attnproof.harness.consumer.batch import (
    expected_tokens_uncached,
    metadata_violations,
    slot_violations,
)
from attnproof.harness.consumer.visible_keys import ExpectedTokens
from attnproof.harness.model.call import Free, Outputs
from attnproof.harness.model.case import Batch
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.metadata import metadata_outputs, mirror_violations

_BOUNDS = ("max_query_len", "max_seq_len")
BOUNDS = "bounds"


def child_fields(child: Any, original: Any) -> Outputs:
    """Return the fields of a drafter's batch; the bounds are free, within `child_violations`."""
    outputs = metadata_outputs(child, original=original)
    return outputs | {BOUNDS: Free(**{name: outputs.pop(name) for name in _BOUNDS})}


def child_violations(outputs: Outputs, original: Any) -> Iterator[Violation]:
    """Check mirrors, offsets, `c == s - q` and the bounds."""
    bounds = outputs[BOUNDS].values
    for name in _BOUNDS:
        if type(bounds[name]) is not int:
            yield Violation(BOUNDS, f"has a {name} that is no Python int")
            return
        if bounds[name] > getattr(original, name):
            yield Violation(BOUNDS, f"has a {name} above the parent's")
    for violation in mirror_violations({**outputs, **bounds}):
        yield violation._replace(field=_named(violation.field))


def causal_tokens(batch: Batch) -> ExpectedTokens:
    """Return the expected tokens of the batch with a causal mask, as a drafter has it."""
    return expected_tokens_uncached(msgspec.structs.replace(batch, causal=True))


def child_consumed(batch: Batch, outputs: Outputs, tokens: np.ndarray) -> Iterator[Violation]:
    """Check the keys that `tokens` of the batch see in the child, and where they are written."""
    expected = causal_tokens(batch)
    seen = {**outputs, **outputs[BOUNDS].values}
    for violation in metadata_violations(expected, seen, tokens=tokens):
        yield violation._replace(field=_named(violation.field))
    slots = outputs["slot_mapping"][: outputs["num_actual_tokens"]]
    yield from slot_violations(expected, slots, "slot_mapping", tokens=tokens)


def _named(field: str | Place) -> str | Place:
    return BOUNDS if field in _BOUNDS else field
