"""What several operations share: reading metadata, spoiling it, its invariants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from attnproof.harness.cases.batches.subclass import REQUEST_FIELDS, TOKEN_FIELDS
from attnproof.harness.cases.batches.tensors import lay_out
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.operation import MISSING, Call, Fault, Outputs, Violation
from attnproof.reference.interface import MetadataError
from attnproof.reference.shared import CommonAttentionMetadata

METADATA_FIELDS = tuple(f.name for f in fields(CommonAttentionMetadata))
CLASS = "class"
"""Output field for the class of metadata that is of a subclass."""


def batch_of(case: Case) -> Batch:
    """The case's batch; cases of metadata operations always have one."""
    assert case.batch is not None, f"{case.operation} needs a batch"
    return case.batch


def has_logits(case: Case) -> bool:
    """Whether the batch carries logits indices: how many fall into a slice is on the device."""
    return batch_of(case).logits_indices is not None


def metadata_outputs(metadata: Any, prefix: str = "", given: Any = None) -> Outputs:
    """Every field of the metadata by name; what a candidate lost is MISSING.

    Of a subclass the fields are those of `given`, the metadata that the operation got;
    that its class came back is one more. A plain batch may come back as a class of the
    candidate's own.
    """
    names, outputs = METADATA_FIELDS, Outputs()
    if given is not None and type(given) is not CommonAttentionMetadata:
        names = tuple(f.name for f in fields(given))
        outputs[f"{prefix}{CLASS}"] = type(metadata).__name__
    return {f"{prefix}{name}": getattr(metadata, name, MISSING) for name in names} | outputs


def diagnose_metadata(call: Call, name: str, expected: Any, got: Any) -> str:
    """What became of a field that a subclass added, "" for any other field."""
    field = name.rsplit(".", 1)[-1]
    if field == CLASS:
        return f"{got} where the given {expected} was expected"
    if field not in (*REQUEST_FIELDS, *TOKEN_FIELDS) or not isinstance(got, torch.Tensor):
        return ""
    known = np.unique(getattr(call.facts["metadata"], field).cpu().numpy())
    misplaced = len(got) >= len(expected) and np.isin(got.cpu().numpy(), known).all()
    if not misplaced or got.dtype != expected.dtype:
        return ""
    return "another request's row" if field in REQUEST_FIELDS else "another token's entry"


def prepare_with_metadata(
    position: int,
) -> Callable[[Case, int, str, list[Any]], Call]:
    """A maker of calls whose argument `position` is the case's batch as metadata."""

    def prepare(case: Case, pattern: int, device: str, others: list[Any]) -> Call:
        metadata, arena = lay_out(batch_of(case), pattern, device)
        args = [*others[:position], metadata, *others[position:]]
        return Call(args, arena=arena, facts={"metadata": metadata, "batch": case.batch})

    return prepare


def token_positions(offsets: np.ndarray, computed: np.ndarray) -> np.ndarray:
    """Position in its sequence of each token that the offsets cover."""
    shift = np.repeat(computed - offsets[:-1], np.diff(offsets))
    positions: np.ndarray = np.arange(len(shift)) + shift
    return positions


def mirror_breaches(outputs: Outputs, prefix: str = "") -> Iterator[Violation]:
    """Mirrors equal, offsets that rise from 0, `c == s - q`, maxima that bound (section 1)."""
    try:
        offsets = outputs[f"{prefix}query_start_loc_cpu"].tolist()
        seq_lens = outputs[f"{prefix}seq_lens_cpu"].tolist()
        computed = outputs[f"{prefix}num_computed_tokens_cpu"].tolist()
    except AttributeError:
        return
    for name in ("query_start_loc", "seq_lens"):
        device = outputs[f"{prefix}{name}"]
        if not isinstance(device, torch.Tensor):
            return
        if device.tolist() != outputs[f"{prefix}{name}_cpu"].tolist():
            yield Violation(f"{prefix}{name}", "differs from its mirror on the CPU")
    query_lens = [end - start for start, end in pairwise(offsets)]
    if not offsets or offsets[0] != 0 or min(query_lens, default=0) < 0:
        yield Violation(f"{prefix}query_start_loc", "does not rise from 0")
        return
    if not len(query_lens) == len(seq_lens) == len(computed) == outputs[f"{prefix}num_reqs"]:
        yield Violation(f"{prefix}num_reqs", "is not the number of rows")
        return
    if any(c != s - q for c, s, q in zip(computed, seq_lens, query_lens, strict=True)):
        yield Violation(f"{prefix}num_computed_tokens_cpu", "is not seq_len - query_len")
    if outputs[f"{prefix}max_query_len"] < max(query_lens, default=0):
        yield Violation(f"{prefix}max_query_len", "is below the longest query")
    if outputs[f"{prefix}max_seq_len"] < max(seq_lens, default=0):
        yield Violation(f"{prefix}max_seq_len", "is below the longest sequence")


def metadata_faults(
    position: int, *, sequences: bool = False, logits: bool = False
) -> dict[str, Fault]:
    """Ways to spoil the metadata at argument `position`, for every operation that takes it.

    `sequences` and `logits`: whether the operation reads those fields; one that reads
    lengths also moves what a subclass adds.
    """

    def fault(field: str, change: Callable[[Any], dict[str, Any]]) -> Fault:
        def spoil(call: Call) -> None:
            call.args[position] = replace(call.args[position], **change(call.args[position]))

        return Fault(field=field, spoil=spoil, error=MetadataError, applies=_has_requests)

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
        "float lengths": fault("seq_lens", lambda md: {"seq_lens": md.seq_lens.float()}),
        "2-D lengths": fault("seq_lens_cpu", lambda md: {"seq_lens_cpu": md.seq_lens_cpu[None]}),
        "flat block table": fault(
            "block_table_tensor", lambda md: {"block_table_tensor": md.block_table_tensor.flatten()}
        ),
        "int32 slots": fault("slot_mapping", lambda md: {"slot_mapping": md.slot_mapping.int()}),
        "negative number of tokens": fault(
            "num_actual_tokens", lambda _: {"num_actual_tokens": -1}
        ),
        "too few slots": fault(
            "slot_mapping", lambda md: {"num_actual_tokens": len(md.slot_mapping) + 1}
        ),
        "causal that is no bool": replace(
            fault("causal", lambda _: {"causal": 1}), error=TypeError
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
        faults["computed tokens of another step"] = fault(
            "num_computed_tokens_cpu",
            lambda md: {"num_computed_tokens_cpu": md.num_computed_tokens_cpu + 1},
        )
        faults["a subclass's rows of another batch"] = replace(
            fault("request_tags_cpu", lambda md: {"request_tags_cpu": md.request_tags_cpu[:-1]}),
            applies=_is_subclassed,
        )
        faults["a subclass's tokens of another batch"] = replace(
            fault("token_tags", lambda md: {"token_tags": md.token_tags[:0]}),
            applies=_is_subclassed,
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


def _has_requests(case: Case) -> bool:
    return case.batch is not None and case.batch.num_requests > 0 and case.batch.num_tokens > 0


def _is_subclassed(case: Case) -> bool:
    return _has_requests(case) and batch_of(case).subclassed


def _falling(offsets: torch.Tensor) -> torch.Tensor:
    return torch.cat([offsets[:-1], offsets[:1] - 1])


def wrong_type(
    position: int, field: str, applies: Callable[[Case], bool] = lambda _: True
) -> Fault:
    """Argument `position` replaced by a string: TypeError."""

    def spoil(call: Call) -> None:
        call.args[position] = "seven"

    return Fault(field=field, spoil=spoil, error=TypeError, applies=applies)


def wrong_value(
    position: int, field: str, value: Any, applies: Callable[[Case], bool] = lambda _: True
) -> Fault:
    """Argument `position` replaced by `value`: MetadataError."""

    def spoil(call: Call) -> None:
        call.args[position] = value

    return Fault(field=field, spoil=spoil, error=MetadataError, applies=applies)


def returned(_call: Call, result: Any) -> Outputs:
    """The outputs of a function that returns one value."""
    return {"result": result}
