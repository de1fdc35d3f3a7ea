"""What each step of a persistent batch makes a kernel see, against what the scheduler knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from attnproof.harness.consumer.batch import (
    expected_tokens_uncached,
    metadata_violations,
    slot_violations,
)
from attnproof.harness.consumer.parts import count_violations
from attnproof.harness.consumer.visible_keys import ExpectedTokens
from attnproof.harness.model.operation import Call, Outputs, Violation
from attnproof.harness.operations.persistent_batch.steps import Engine
from attnproof.harness.operations.ubatch.slices import spans_at


def steps_consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """The first step after which something else would be seen, read or written."""
    params, index = call.facts["case"].params, 0
    engine = Engine(params, 0)
    for step in params["steps"]:
        line = engine.line(step)
        if line is None:
            continue
        prefix = f"[{index}]."
        index += 1
        if outputs.get(f"{prefix}raises", "never") is not None:
            if line.raises:
                continue
            return  # the sequence ended here
        found = list(_step_breaches(engine, step, outputs, prefix))
        yield from found
        if found:
            return


def _step_breaches(
    engine: Engine, step: dict[str, Any], outputs: Outputs, prefix: str
) -> Iterator[Violation]:
    kind = step["do"]
    if engine.built is None or kind not in ("build", "dummy", "slots", "cut", "local", "split"):
        return
    expected = expected_tokens_uncached(engine.built)
    if kind == "split":
        counts, threshold = outputs[f"{prefix}counts"], 1 + step["threshold"]
        for breach in count_violations(expected, counts, threshold):
            yield breach._replace(field=f"{prefix}counts")
    elif kind == "slots":
        yield from slot_violations(expected, outputs[f"{prefix}slots"], f"{prefix}slots")
    elif kind == "cut":
        yield from _cut_breaches(engine, expected, step, outputs, prefix)
    elif kind == "local":
        chunk = engine.block_size * (1 + step["blocks"] % engine.columns)
        yield from metadata_violations(expected, outputs, f"{prefix}virtual: ", chunk=chunk)
    else:
        yield from metadata_violations(expected, outputs, prefix)
        for name in ("slot_mapping", "slot_buffer"):
            field = f"{prefix}{name}"
            yield from slot_violations(
                expected, outputs[field], field, unwritten=_none(engine, expected)
            )


def _cut_breaches(
    engine: Engine, expected: ExpectedTokens, step: dict[str, Any], outputs: Outputs, prefix: str
) -> Iterator[Violation]:
    total, unwritten = len(expected.requests), _none(engine, expected)
    batch = expected.batch
    cut = step["at"] % (batch.num_tokens + batch.padded_tokens)
    for number, (_, _, begin, end) in enumerate(spans_at(batch, [cut])):
        tokens = np.arange(begin, min(end, total))
        child = f"{prefix}micro-batch {number}: "
        yield from metadata_violations(expected, outputs, child, tokens=tokens)
        field = f"{child}slot_mapping"
        mine = unwritten[tokens]
        yield from slot_violations(expected, outputs[field], field, tokens=tokens, unwritten=mine)


def _none(engine: Engine, expected: ExpectedTokens) -> np.ndarray:
    """Which tokens have no slot: none of a step, all of a dummy run."""
    return np.full(len(expected.requests), not engine.has_slots)
