"""The operations of SPEC.md, one file a section; `ALL` has them by name."""

from harness.model.operation import Operation
from harness.operations import (
    batch_split,
    layout_sequence,
    local_attention,
    sequence_slots,
    slot_mapping,
    ubatch,
)

_FILES = (batch_split, ubatch, local_attention, slot_mapping, sequence_slots, layout_sequence)
ALL: dict[str, Operation] = {op.name: op for file in _FILES for op in file.OPERATIONS}
