"""Operation of SPEC.md section 15: cached prefixes in a radix tree, page by page.

Bug classes: a prefix that is hit a page too far, a locked leaf that is evicted, slots that are
evicted twice or lost where a node is divided, the wrong leaf first.
"""

from __future__ import annotations

from dataclasses import replace

from attnproof.harness.model.operation import Bench, BuiltIn
from attnproof.harness.operations.derived.derive import derive_built_in
from attnproof.harness.operations.shared.sequence import SEQUENCE_NOT_TIMED
from attnproof.reference import RadixCache

_operation = derive_built_in(
    RadixCache,
    section="15",
    built_in=BuiltIn(shared="a tree of Python objects: there is nothing to make faster"),
)
OPERATIONS = (replace(_operation, bench=Bench(never=SEQUENCE_NOT_TIMED)),)
