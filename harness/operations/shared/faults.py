"""Faults of batch metadata that every operation on it must refuse, and of single arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from attnproof.harness.model.case import Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.reference.interface import MetadataError


def _has_requests(case: Case) -> bool:
    return case.batch is not None and case.batch.num_requests > 0 and case.batch.num_tokens > 0


def metadata_fault(
    parameter: str,
    field: str,
    change: Callable[[Any], dict[str, Any]],
    applies: Callable[[Case], bool] = _has_requests,
    error: type[Exception] = MetadataError,
) -> Fault:
    """Return a fault of metadata: `change` returns the fields that get other values."""
    return Fault(parameter, lambda md: replace(md, **change(md)), field, error, applies)


def metadata_faults(
    parameter: str, *, sequences: bool = False, logits: bool = False, rows: bool | None = None
) -> dict[str, Fault]:
    """Return the faults of metadata that every operation on it must refuse.

    `sequences`: True if the operation reads lengths. `rows`: True if it moves a subclass's fields,
    by default if it reads lengths.
    `logits`: True if the operation reads logits indices.
    """
    fault = partial(metadata_fault, parameter)
    faults = {
        "offsets of another batch": fault(
            "query_start_loc_cpu", lambda md: {"query_start_loc_cpu": md.query_start_loc_cpu[:-1]}
        ),
        "offsets that do not start at 0": fault(
            "query_start_loc_cpu", lambda md: {"query_start_loc_cpu": md.query_start_loc_cpu + 1}
        ),
        "offsets that fall": fault(
            "query_start_loc_cpu",
            lambda md: {"query_start_loc_cpu": _falling(md.query_start_loc_cpu)},
        ),
        "offsets that fall, and lengths that agree": fault(
            "query_start_loc_cpu",
            lambda md: _agreeing(md, query_start_loc_cpu=_falling(md.query_start_loc_cpu)),
        ),
        "flat block table": fault(
            "block_table_tensor", lambda md: {"block_table_tensor": md.block_table_tensor.flatten()}
        ),
        "int32 slots": fault("slot_mapping", lambda md: {"slot_mapping": md.slot_mapping.int()}),
        "too few slots": fault(
            "slot_mapping", lambda md: {"num_actual_tokens": len(md.slot_mapping) + 1}
        ),
        "causal that is no bool": fault("causal", lambda _: {"causal": 1}, error=TypeError),
    }
    faults |= {
        words.format(field): fault(field, partial(_changed, field, change), error=error)
        for fields, words, change, error in _WRONG_FIELDS
        for field in fields
    }
    faults |= {
        name: fault("query_start_loc_cpu", partial(_with_room, change), applies)
        for name, change, applies in _WRONG_OFFSETS
    }
    faults |= {
        "offsets of one request less": fault(
            "query_start_loc", partial(_resized, "query_start_loc", -1)
        ),
        "offsets of one request more": fault(
            "query_start_loc", partial(_resized, "query_start_loc", 1)
        ),
    }
    faults["fewer tokens than the offsets say"] = fault(
        "num_actual_tokens",
        lambda md: {"num_actual_tokens": int(md.query_start_loc_cpu[-1]) - 1},
    )
    faults["bound below the longest query"] = fault(
        "max_query_len",
        lambda md: {"max_query_len": int(md.query_start_loc_cpu.diff().max()) - 1},
    )
    if sequences:
        faults["bound below the longest sequence"] = fault(
            "max_seq_len", lambda md: {"max_seq_len": int(md.seq_lens_cpu.max()) - 1}
        )
        faults["sequence shorter than its query"] = fault(
            "seq_lens_cpu", lambda md: {"seq_lens_cpu": md.query_start_loc_cpu.diff() - 1}
        )
        faults["sequence shorter than its query, and computed tokens that agree"] = fault(
            "seq_lens_cpu",
            lambda md: _agreeing(md, seq_lens_cpu=md.query_start_loc_cpu.diff() - 1),
        )
        faults["computed tokens of another step"] = fault(
            "num_computed_tokens_cpu",
            lambda md: {"num_computed_tokens_cpu": md.num_computed_tokens_cpu + 1},
        )
        faults |= {
            name: fault(
                "num_computed_tokens_cpu",
                partial(_with_computed, change),
                applies,
            )
            for name, change, applies in _WRONG_COMPUTED
        }
        faults |= {
            f"{name}, int64": replace(faults[name], change=_widened(faults[name].change))
            for name in _ALSO_WIDE
        }
    if sequences if rows is None else rows:
        faults["a subclass's rows of another batch"] = fault(
            "request_tags_cpu",
            lambda md: {"request_tags_cpu": md.request_tags_cpu[:-1]},
            _is_subclassed,
        )
        faults["a subclass's tokens of another batch"] = fault(
            "token_tags", lambda md: {"token_tags": md.token_tags[:0]}, _is_subclassed
        )
    if logits:
        faults["negative number of logits"] = fault(
            "num_logits_indices", lambda _: {"num_logits_indices": -1}
        )
        faults["logits indices without their count"] = fault(
            "num_logits_indices",
            lambda _: {
                "logits_indices_padded": torch.zeros(2, dtype=torch.int32),
                "num_logits_indices": None,
            },
        )
    return faults


_NUMBERS = ("num_reqs", "num_actual_tokens", "max_query_len", "max_seq_len")
_ROWS = ("query_start_loc", "seq_lens", "seq_lens_cpu", "num_computed_tokens_cpu")
_TENSORS = ("query_start_loc_cpu", *_ROWS, "block_table_tensor", "slot_mapping")
_PLACED = ("seq_lens", "block_table_tensor", "slot_mapping", "query_start_loc_cpu", "seq_lens_cpu")
_WRONG_FIELDS: tuple[tuple[tuple[str, ...], str, Callable[[Any], Any], type[Exception]], ...] = (
    (_NUMBERS, "negative {}", lambda _: -1, MetadataError),
    (_NUMBERS, "{} of another type", float, TypeError),
    (_TENSORS, "{} as a list", lambda tensor: tensor.tolist(), TypeError),
    (_TENSORS, "{} of another dtype", lambda tensor: tensor.float(), MetadataError),
    (_TENSORS, "{} with another dimension", lambda tensor: tensor[None], MetadataError),
    ((*_ROWS, "block_table_tensor"), "{} of fewer rows", lambda tensor: tensor[:-1], MetadataError),
    (_PLACED, "{} on another device", lambda tensor: tensor.to("meta"), MetadataError),
    (("slot_mapping",), "{} as a column", lambda tensor: tensor[:, None], MetadataError),
    (("slot_mapping",), "{} without dimensions", lambda tensor: tensor[0], MetadataError),
    (
        ("block_table_tensor",),
        "{} with rows and columns exchanged",
        lambda tensor: tensor.new_zeros(len(tensor) + 1, len(tensor)),
        MetadataError,
    ),
)
"""Fields of metadata, the name of a fault, the function that makes it, and its error."""
_MIRRORS = ("query_start_loc_cpu", "seq_lens_cpu", "num_computed_tokens_cpu")


def _has_two_requests(case: Case) -> bool:
    return _has_requests(case) and batch_of(case).num_requests > 1


def _has_different_rows(case: Case) -> bool:
    """True if the first and the last row have other queries and other computed tokens."""
    if not _has_two_requests(case) or batch_of(case).padded_requests:
        return False
    queries, computed = batch_of(case).query_lens, batch_of(case).computed_lens
    return queries[0] != queries[-1] and computed[0] != computed[-1]


_WRONG_OFFSETS: tuple[
    tuple[str, Callable[[torch.Tensor], torch.Tensor], Callable[[Case], bool]], ...
] = (
    ("first offset above 0", lambda offsets: _replaced(offsets, 0, 1), _has_requests),
    ("first offset below 0", lambda offsets: _replaced(offsets, 0, -1), _has_requests),
    ("offsets that end at 0", lambda offsets: offsets - offsets[-1], _has_requests),
    ("offsets that all fall", lambda offsets: -offsets, _has_requests),
    ("offsets that fall once", lambda offsets: _replaced(offsets, 1, -1), _has_two_requests),
)
"""Name of a fault, the function that makes it of good offsets, and the cases that have it."""
_WRONG_COMPUTED: tuple[tuple[str, Callable[[Any], torch.Tensor], Callable[[Case], bool]], ...] = (
    ("computed tokens with the query", lambda md: md.seq_lens_cpu, _has_requests),
    (
        "computed tokens behind the query",
        lambda md: md.seq_lens_cpu + md.query_start_loc_cpu.diff(),
        _has_requests,
    ),
    (
        "computed tokens of another row",
        lambda md: md.num_computed_tokens_cpu.flip(0),
        _has_different_rows,
    ),
    (
        "computed tokens without another row's query",
        lambda md: md.seq_lens_cpu - md.query_start_loc_cpu.diff().flip(0),
        _has_different_rows,
    ),
)
"""Name of a fault, the function that makes it of good metadata, and the cases that have it."""
_ALSO_WIDE = (
    "offsets that fall, and lengths that agree",
    "sequence shorter than its query, and computed tokens that agree",
    "computed tokens of another step",
)
"""Faults that int64 mirrors have as well."""


def _changed(field: str, change: Callable[[Any], Any], md: Any) -> dict[str, Any]:
    return {field: change(getattr(md, field))}


def _with_computed(change: Callable[[Any], torch.Tensor], md: Any) -> dict[str, Any]:
    return {"num_computed_tokens_cpu": change(md)}


def _with_room(change: Callable[[torch.Tensor], torch.Tensor], md: Any) -> dict[str, Any]:
    """Return changed offsets, and lengths and bounds with which nothing else is wrong."""
    room = md.num_actual_tokens + 2
    lengths = {"max_query_len": room, "max_seq_len": md.max_seq_len + room}
    offsets, seq_lens = change(md.query_start_loc_cpu), md.seq_lens_cpu + room
    return lengths | _agreeing(md, query_start_loc_cpu=offsets, seq_lens_cpu=seq_lens)


def _replaced(values: torch.Tensor, index: int, value: int) -> torch.Tensor:
    changed = values.clone()
    changed[index] = value
    return changed


def _resized(field: str, rows: int, md: Any) -> dict[str, Any]:
    """Return a tensor and its mirror with `rows` entries more than the batch has."""
    pair = {name: getattr(md, name) for name in (field, f"{field}_cpu")}
    if rows < 0:
        return {name: tensor[:rows] for name, tensor in pair.items()}
    return {name: torch.cat([tensor, tensor[-rows:]]) for name, tensor in pair.items()}


def _widened(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the change, followed by one of all mirrors to int64."""

    def widen(md: Any) -> Any:
        metadata = change(md)
        return replace(metadata, **{name: getattr(metadata, name).long() for name in _MIRRORS})

    return widen


def _is_subclassed(case: Case) -> bool:
    return _has_requests(case) and batch_of(case).subclassed


def _agreeing(md: Any, **changed: torch.Tensor) -> dict[str, Any]:
    """Return the changed mirrors, and computed tokens that agree with them."""
    metadata = replace(md, **changed)
    computed = metadata.seq_lens_cpu - metadata.query_start_loc_cpu.diff()
    return {**changed, "num_computed_tokens_cpu": computed}


def _falling(offsets: torch.Tensor) -> torch.Tensor:
    return torch.cat([offsets[:-1], offsets[:1] - 1])


def wrong_type(
    parameter: str, field: str = "", applies: Callable[[Case], bool] = lambda _: True
) -> Fault:
    """Return the fault of an argument of another type: TypeError.

    A number keeps its value: code that only computes with it gives a result.
    """
    return Fault(parameter, _of_another_type, field, TypeError, applies)


def _of_another_type(value: Any) -> Any:
    if type(value) is bool:
        return int(value)
    if type(value) is str:
        return 7
    return float(value) if type(value) is int else "seven"


def wrong_value(
    parameter: str, value: Any, applies: Callable[[Case], bool] = lambda _: True
) -> Fault:
    """Return the fault of `value` in place of the argument: MetadataError."""
    return Fault(parameter, lambda _: value, applies=applies)
