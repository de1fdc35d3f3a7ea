"""Batch metadata as input and output of operations: outputs, invariants, diagnosis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from attnproof.harness.cases.batches import later
from attnproof.harness.cases.batches.subclass import REQUEST_FIELDS, TOKEN_FIELDS
from attnproof.harness.cases.batches.tensors import lay_out
from attnproof.harness.model.call import MISSING, Call, Facts, Free, Outputs
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.reference.shared import CommonAttentionMetadata

METADATA_FIELDS = tuple(f.name for f in fields(CommonAttentionMetadata))
CLASS = "class"
"""Output field with the class of the metadata, for metadata of a subclass."""


def batch_of(case: Case) -> Batch:
    """Return the case's batch, which cases of metadata operations always have."""
    assert case.batch is not None, f"{case.operation} needs a batch"
    return case.batch


def has_logits(case: Case) -> bool:
    """True if the batch has logits indices."""
    # Used as `may_sync`: the number of indices in a slice is read from the device.
    return batch_of(case).logits_indices is not None


def metadata_outputs(metadata: Any, prefix: str = "", original: Any = None) -> Outputs:
    """Return every field of the metadata by name; a field that it lacks is MISSING.

    `original` is the metadata that the operation got. If `original` is of a subclass, the outputs
    are the subclass's fields and the name of the result's class. For other metadata the class
    is no output: it may be the candidate's own.
    """
    names, outputs = METADATA_FIELDS, Outputs()
    if original is not None and type(original) is not CommonAttentionMetadata:
        names = tuple(f.name for f in fields(original))
        outputs[f"{prefix}{CLASS}"] = type(metadata).__name__
    outputs |= {f"{prefix}{name}": getattr(metadata, name, MISSING) for name in names}
    bound = outputs.get(f"{prefix}{later.BOUND}")
    if isinstance(bound, torch.Tensor):  # any upper bound will do: `mirror_violations` judges it
        outputs[f"{prefix}{later.BOUND}"] = Free(device=str(bound.device), values=bound.tolist())
    return outputs


def diagnose_metadata(call: Call, place: Place, expected: Any, got: Any) -> str:
    """Return the diagnosis of a subclass's class or field, "" for any other field."""
    field = place.field.rsplit(".", 1)[-1]
    if field == CLASS:
        return f"{got} where the given {expected} was expected"
    if field not in (*REQUEST_FIELDS, *TOKEN_FIELDS) or not isinstance(got, torch.Tensor):
        return ""
    known = np.unique(getattr(call.facts.metadata, field).cpu().numpy())
    misplaced = len(got) >= len(expected) and np.isin(got.cpu().numpy(), known).all()
    if not misplaced or got.dtype != expected.dtype:
        return ""
    return "another request's row" if field in REQUEST_FIELDS else "another token's entry"


@dataclass(frozen=True, kw_only=True)
class BatchFacts(Facts):
    """Facts of an operation on batch metadata."""

    batch: Batch


def prepare_metadata(case: Case, pattern: int, device: str, arguments: Mapping[str, Any]) -> Call:
    """Return a call with the case's batch as metadata in place of the argument `...`."""
    metadata, arena = lay_out(batch_of(case), pattern, device)
    args = {name: metadata if value is ... else value for name, value in arguments.items()}
    return Call(args, arena=arena, facts=BatchFacts(batch=batch_of(case), metadata=metadata))


def token_positions(offsets: np.ndarray, computed: np.ndarray) -> np.ndarray:
    """Return (T,) the position in its sequence of each token that the offsets cover."""
    shift = np.repeat(computed - offsets[:-1], np.diff(offsets))
    positions: np.ndarray = np.arange(len(shift)) + shift
    return positions


def mirror_violations(outputs: Outputs, prefix: str = "") -> Iterator[Violation]:
    """Check the mirrors, the offsets, `c == s - q` and the maxima (section 1)."""
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
    bound = outputs.get(f"{prefix}{later.BOUND}")
    if isinstance(bound, Free) and not _is_bound(bound, seq_lens):
        yield Violation(f"{prefix}{later.BOUND}", "is not a bound of each sequence, on the CPU")


def _is_bound(bound: Free, seq_lens: list[int]) -> bool:
    device, values = bound.values["device"], bound.values["values"]
    if device != "cpu" or len(values) != len(seq_lens):
        return False
    return all(most >= length for most, length in zip(values, seq_lens, strict=True))


def returned(_call: Call, result: Any) -> Outputs:
    """Return the outputs of a function that returns one value."""
    return {"result": result}
