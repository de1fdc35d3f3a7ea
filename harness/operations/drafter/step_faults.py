"""Faults of `eagle_step_update_slot_mapping_and_metadata`."""

from __future__ import annotations

import torch

from attnproof.harness.model.case import Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.operations.shared.faults import wrong_type, wrong_value


def _has_rows(case: Case) -> bool:
    return case.num_requests > 0


def _short(parameter: str) -> Fault:
    return Fault(parameter, lambda tensor: tensor[:-1], applies=_has_rows)


def _tight(case: Case) -> bool:
    return _has_rows(case) and not case.params["spare"]


FAULTS = {
    "block size of 0": wrong_value("block_size", 0),
    "block size of another type": wrong_type("block_size"),
    "model of no position": wrong_value("max_model_len", 0),
    "positions of another type": wrong_type("positions_1d"),
    "float positions": Fault("positions_1d", torch.Tensor.float),
    "lengths of another batch": _short("seq_lens"),
    "tables of another batch": _short("block_table_tensor"),
    "flat block table": Fault("block_table_tensor", torch.Tensor.flatten),
    "short positions buffer": Fault(
        "out_clamped_positions",
        lambda out: out[:-1],
        applies=lambda case: _tight(case) and not case.params["in_place"],
    ),
    "short slots buffer": Fault("out_slot_mapping", lambda out: out[:-1], applies=_tight),
    "int32 slots": Fault("out_slot_mapping", torch.Tensor.int),
    "fewer rows than requests": Fault(
        "input_batch_size",
        lambda _, positions: len(positions) - 1,
        applies=_has_rows,
        given=("positions_1d",),
    ),
    "slots in the memory of the lengths": Fault(
        ("seq_lens", "out_slot_mapping"),
        lambda lengths, slots: (slots[: len(lengths)], slots),
        "out_slot_mapping",
        applies=_has_rows,
    ),
    "negative position": Fault(
        "positions_1d", lambda positions: -1 - positions, applies=_has_rows, cpu_only=True
    ),
}
