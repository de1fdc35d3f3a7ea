"""Faults of `copy_and_expand_eagle_inputs`."""

from __future__ import annotations

from collections.abc import Callable

import torch

from attnproof.harness.model.case import Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.operations.shared.faults import wrong_type, wrong_value


def _has_rows(case: Case) -> bool:
    return case.num_requests > 0


def _tight(case: Case) -> bool:
    return _has_rows(case) and not case.params["spare"]


def _hidden_tight(case: Case) -> bool:
    return _tight(case) and bool(case.params["shift"])


def _short(parameter: str, applies: Callable[[Case], bool] = _has_rows) -> Fault:
    return Fault(parameter, lambda tensor: tensor[:-1], applies=applies)


def _shares(outputs: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return outputs, outputs


FAULTS = {
    "no new token": wrong_value("num_padding_slots_per_request", 0),
    "new tokens of another type": wrong_type("num_padding_slots_per_request"),
    "negative padding token": wrong_value("padding_token_id", -1),
    "shift that is no bool": Fault("shift_input_ids", int, error=TypeError),
    "tokens of another type": wrong_type("target_token_ids"),
    "float positions": Fault("target_positions", torch.Tensor.float),
    "fewer tokens": _short("target_token_ids"),
    "fewer positions": _short("target_positions"),
    "sampled tokens of another batch": _short("next_token_ids"),
    "offsets of another batch": _short("query_start_loc"),
    "short ids": _short("out_input_ids", _tight),
    "short positions buffer": _short("out_positions", _tight),
    "short mask": _short("out_is_rejected_token_mask", _tight),
    "short indices": _short("out_new_token_indices", _tight),
    "short mapping": _short("out_hidden_state_mapping", _hidden_tight),
    "mask that is no bool": Fault("out_is_masked_token_mask", torch.Tensor.int),
    "one mask for both": Fault(
        ("out_is_rejected_token_mask", "out_is_masked_token_mask"),
        _shares,
        "out_is_masked_token_mask",
        applies=_has_rows,
    ),
    "ends outside their rows": Fault(
        "query_end_loc", lambda ends: ends + 1_000_000, applies=_has_rows, cpu_only=True
    ),
    "another number of tokens": Fault(
        "total_input_tokens", lambda tokens: tokens - 1, applies=_has_rows, cpu_only=True
    ),
}
