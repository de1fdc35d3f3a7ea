"""Functions that remove the fields and arguments of a case that an engine does not have."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from attnproof.harness.cases.batches import later
from attnproof.harness.model.case import Case
from attnproof.harness.operations.batch.reorder import REORDER
from attnproof.harness.operations.xformers.builder import NAME as BUILDER
from attnproof.harness.operations.xformers.builder import PROGRESS

_LATER_PARAMS = {
    "split_decodes_and_prefills": ("treat_short_extends_as_decodes",),
    REORDER: ("prompt_lens",),
}
"""Arguments of earlier operations that only later engines have."""

_OPTIONAL = ("logits_indices", "num_logits", "encoder_seq_lens", "dcp_local_seq_lens")
"""Fields of a batch that may be None."""


def _without_later_params(case: Case) -> Case:
    left_out = _LATER_PARAMS.get(case.operation, ())
    if not any(name in case.params for name in left_out):
        return case
    kept = {name: value for name, value in case.params.items() if name not in left_out}
    return structs.replace(case, params=kept)


def _with_known_progress(case: Case, known: dict[int, int]) -> Case:
    """Return the case with its progress replaced by `known`, if it is of XFormers' builder."""
    progress = case.params.get(PROGRESS, 0)
    if case.operation != BUILDER or progress not in known:
        return case
    return structs.replace(case, params=case.params | {PROGRESS: known[progress]})


def without_progress(case: Case) -> Case:
    """Return the case for engines that know no progress and no uniform batches: vLLM 0.10."""
    case = without_later_fields(case)
    if case.params.get("require_uniform"):
        return structs.replace(case, params=case.params | {"require_uniform": False})
    if case.operation != REORDER:
        return _with_known_progress(case, {1: 0})
    kept = ("query_lens", "decode_threshold")
    return structs.replace(case, params={name: case.params[name] for name in kept})


def without_later_fields(case: Case) -> Case:
    """Return the case for engines whose batch has the fields of section 1 only: vLLM 0.11."""
    case = _with_known_progress(_without_later_params(case), {0: 1, 2: 1})
    batch = None if case.batch is None else later.without_later_fields(case.batch)
    return case if batch is case.batch else structs.replace(case, batch=batch)


def without_optional_fields(case: Case) -> Case:
    """Return the case for engines whose functions take single tensors of a batch: SGLang 0.5."""
    case = without_later_fields(case)
    if case.batch is None:
        return case
    changes: dict[str, Any] = {"causal": True, "subclassed": False, "logits_padding": 0}
    changes |= dict.fromkeys(_OPTIONAL)
    batch = structs.replace(case.batch, **changes)
    return case if batch == case.batch else structs.replace(case, batch=batch)


def with_prompts(case: Case) -> Case:
    """Return the case for vLLM 0.32: engines that know prompts wherever they know progress.

    Its class cannot cut the fields that a subclass adds, so that `unpadded` gets none.
    """
    if case.operation == "CommonAttentionMetadata" and case.batch and case.batch.subclassed:
        return structs.replace(case, batch=structs.replace(case.batch, subclassed=False))
    case = _with_known_progress(case, {0: 2, 1: 2})
    computed = case.params.get("computed_lens")
    if case.operation != REORDER or computed is None or case.params.get("prompt_lens") is not None:
        return case
    return structs.replace(case, params=case.params | {"prompt_lens": [0] * len(computed)})
