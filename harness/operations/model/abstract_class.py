"""Parts of the three operations on abstract classes, whose `use` returns the outputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.violation import Violation

SHARED = "an abstract class: there is nothing to make faster"


def unexpected(outputs: Outputs, expected: dict[str, Any]) -> Iterator[Violation]:
    """Yield a violation for each output of another type or value than expected."""
    for name, value in expected.items():
        if type(outputs[name]) is not type(value) or outputs[name] != value:
            yield Violation(name, f"is {outputs[name]!r}, not {value!r}")


def same(_call: Call, result: Outputs) -> Outputs:
    """Return the outputs that `use` returned."""
    return result
