"""Operation of SPEC.md section 15: cached prefixes in a radix tree, page by page.

Bug classes: a prefix that is hit a page too far, a locked leaf that is evicted, slots that are
evicted twice or lost where a node is divided, the wrong leaf first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attnproof.harness.model.operation import Bench, BuiltIn
from attnproof.harness.operations.derived.derive import derive
from attnproof.harness.operations.shared.sequence import SEQUENCE_NOT_TIMED
from attnproof.reference import RadixCache
from attnproof.reference.definition.definition import Definition, definition_of

_BELOW = {"page_size": 4, "token_ids": 2, "number": 4, "num_tokens": 16}
"""Limits of the cases: with few tokens and small pages prefixes are often common."""


def _narrowed(definition: Definition) -> Definition:
    """Return the definition with the limits of the cases."""
    arguments = []
    for each in definition.arguments:
        declared: Any = each.declared
        arguments.append(replace(each, declared=replace(declared, below=_BELOW[each.name])))
    methods = tuple(map(_narrowed, definition.methods))
    return replace(definition, arguments=tuple(arguments), methods=methods)


_definition = definition_of(RadixCache)
assert _definition is not None
_operation = derive(
    _narrowed(_definition),
    section="15",
    built_in=BuiltIn(shared="a tree of Python objects: there is nothing to make faster"),
)
OPERATIONS = (replace(_operation, bench=Bench(never=SEQUENCE_NOT_TIMED)),)
