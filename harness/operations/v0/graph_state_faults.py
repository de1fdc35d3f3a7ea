"""Faults of captured V0 graphs: wrong sizes, and engine steps that a graph cannot hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from attnproof.harness.cases.engines.v0 import Backend, MetadataV0
from attnproof.harness.model.case import Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.operations.shared.faults import wrong_type, wrong_value
from attnproof.harness.operations.v0.graph_step import DECODER, ENCODER, step_metadata


def _step_fault(field: str, **values: Any) -> Fault:
    """Return the fault of other fields of the engine step; functions get the field's value."""

    def malformed(step: MetadataV0) -> MetadataV0:
        new = {
            name: value(getattr(step, name)) if callable(value) else value
            for name, value in values.items()
        }
        return replace(step, **new)

    return Fault("attn_metadata", malformed, field)


def _one_more(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat([tensor, tensor[:1]])


def _larger(step: MetadataV0, rows: int) -> MetadataV0:
    """Return an engine step with more decodes than a graph of `rows` rows."""
    tensors = {name: getattr(step, name) for name in DECODER + ENCODER}
    return step_metadata({name: torch.cat([t] * (rows + 1)) for name, t in tensors.items()})


def _wider(tables: torch.Tensor) -> torch.Tensor:
    return torch.cat([tables, tables, tables[:, :1]], dim=1) if tables.shape[1] else tables


def _is_encoder_decoder(case: Case) -> bool:
    return bool(case.params["backend"])


def _encoder_fault(field: str, **values: Any) -> Fault:
    return replace(_step_fault(field, **values), applies=_is_encoder_decoder)


FAULTS = {
    "capture of no rows": wrong_value("max_batch_size", 0),
    "capture of more rows than the runner has": wrong_value("max_batch_size", 100_000),
    "capture of another type": wrong_type("max_batch_size"),
    "graph of no rows": wrong_value("batch_size", 0),
    "graph larger than the capture": wrong_value("batch_size", 100_000),
    "graph of another type": wrong_type("batch_size"),
    "backend without encoder-decoder models": Fault(
        "runner",
        lambda runner: replace(runner, attn_backend=Backend("TORCH_SDPA")),
        "attn_backend",
        applies=_is_encoder_decoder,
    ),
    "step with prompts": _step_fault("num_prefills", num_prefills=1),
    "step without decodes": _step_fault("decode_metadata", num_decode_tokens=0),
    "step without block tables": _step_fault("block_tables", block_tables=None),
    "step without slots for a row": _step_fault("slot_mapping", slot_mapping=_one_more),
    "step larger than the graph": Fault(
        "attn_metadata", _larger, "seq_lens_tensor", reads=("batch_size",)
    ),
    "tables wider than the graph's": _step_fault("block_tables", block_tables=_wider),
    "float lengths": _step_fault("seq_lens_tensor", seq_lens_tensor=lambda t: t.float()),
    "flat tables": _step_fault("block_tables", block_tables=lambda t: t.flatten()),
    "step without encoder lengths": _encoder_fault(
        "encoder_seq_lens_tensor", encoder_seq_lens_tensor=None
    ),
}
