"""Names to define an operation of one's own with; docs/operations.md teaches them."""

from attnproof.reference.definition.definition import DefinitionError, operation
from attnproof.reference.definition.roles import (
    Array,
    BlockSize,
    BlockTable,
    ComputedLens,
    Flag,
    Int,
    MaxQueryLen,
    MaxSeqLen,
    NumReqs,
    NumTokens,
    Offsets,
    Positions,
    QueryLens,
    RequestIndices,
    SeqLens,
    Slots,
)

__all__ = [
    "Array",
    "BlockSize",
    "BlockTable",
    "ComputedLens",
    "DefinitionError",
    "Flag",
    "Int",
    "MaxQueryLen",
    "MaxSeqLen",
    "NumReqs",
    "NumTokens",
    "Offsets",
    "Positions",
    "QueryLens",
    "RequestIndices",
    "SeqLens",
    "Slots",
    "operation",
]
