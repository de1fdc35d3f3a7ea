"""Consumer of a persistent batch: visible keys and slots of each step."""

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
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.place import by_step, place_of
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.persistent_batch.steps import Engine
from attnproof.harness.operations.ubatch.slices import spans_at


def steps_consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Yield the violations of the first step with wrong visible keys or slots."""
    params, index, steps = call.facts.case.params, 0, by_step(outputs)
    engine = Engine(params, 0)
    for step in params["steps"]:
        line = engine.line(step)
        if line is None:
            continue
        if not line.raises:
            seen = steps[index]
            if seen.get("raises", "never") is not None:
                return  # the sequence ended here
            violations = list(_step_violations(engine, step, seen))
            for violation in violations:
                yield violation._replace(field=place_of(violation.field)._replace(step=index))
            if violations:
                return
        index += 1


def _step_violations(engine: Engine, step: dict[str, Any], seen: Outputs) -> Iterator[Violation]:
    kind = step["do"]
    if engine.built is None or kind not in ("build", "dummy", "slots", "cut", "local", "split"):
        return
    expected = expected_tokens_uncached(engine.built)
    if kind == "split":
        for violation in count_violations(expected, seen["counts"], 1 + step["threshold"]):
            yield violation._replace(field="counts")
    elif kind == "slots":
        yield from slot_violations(expected, seen["slots"], "slots")
    elif kind == "cut":
        yield from _cut_violations(engine, expected, step, seen)
    elif kind == "local":
        chunk = engine.block_size * (1 + step["blocks"] % engine.columns)
        yield from metadata_violations(expected, seen, "virtual: ", chunk=chunk)
    else:
        yield from metadata_violations(expected, seen)
        for name in ("slot_mapping", "slot_buffer"):
            yield from slot_violations(
                expected, seen[name], name, unwritten=_unwritten(engine, expected)
            )


def _cut_violations(
    engine: Engine, expected: ExpectedTokens, step: dict[str, Any], seen: Outputs
) -> Iterator[Violation]:
    total, unwritten = len(expected.requests), _unwritten(engine, expected)
    batch = expected.batch
    cut = step["at"] % (batch.num_tokens + batch.padded_tokens)
    for number, (_, _, begin, end) in enumerate(spans_at(batch, [cut])):
        tokens = np.arange(begin, min(end, total))
        child = f"micro-batch {number}: "
        yield from metadata_violations(expected, seen, child, tokens=tokens)
        field = f"{child}slot_mapping"
        mine = unwritten[tokens]
        yield from slot_violations(expected, seen[field], field, tokens=tokens, unwritten=mine)


def _unwritten(engine: Engine, expected: ExpectedTokens) -> np.ndarray:
    """Return the mask of tokens without a slot: all of a dummy run, none of another step."""
    return np.full(len(expected.requests), not engine.has_slots)
