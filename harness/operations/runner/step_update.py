"""Operations of SPEC.md section 13 that update request slots after sampling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from attnproof import reference
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.case import Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.operations.runner.step import StepFacts
from attnproof.harness.operations.runner.step_call import (
    has_live_rows,
    set_live,
    step_operation,
)

Right = Iterator[tuple[str, np.ndarray, str]]
_SAMPLED, _REJECTED = "num_sampled", "num_rejected"
_MAPPING = ("idx_mapping",)


def _counts(facts: StepFacts) -> Right:
    past = facts.live & (facts.computed + facts.query >= facts.prefill)
    sampled = np.where(past, facts.sampled, 0)
    counted = facts.before[_SAMPLED].astype(np.int64)
    counted[: len(sampled)] = sampled
    for field in ("sampled", _SAMPLED):
        yield field, counted, "counts tokens that the row did not sample"
    rejected = np.where(past, facts.logits - facts.sampled, 0)
    yield _REJECTED, rejected, "is not logits minus sampled tokens, 0 in the prompt"


def _updated(facts: StepFacts) -> Right:
    names = ("all_token_ids", "total_len", "last_sampled_tokens", "output_bin_counts", "advanced")
    right = {name: facts.before[name].astype(np.int64) for name in names}
    tokens, rejected = facts.before["sampled_tokens"], facts.before[_REJECTED]
    for row in np.flatnonzero(facts.live):
        slot, count = facts.slots[row], facts.before["counted"][row]
        length, new = right["total_len"][slot], tokens[row, :count]
        right["all_token_ids"][slot, length : length + count] = new
        right["total_len"][slot] += count
        if count:
            right["last_sampled_tokens"][slot] = new[-1]
        if facts.params["counted"]:
            np.add.at(right["output_bin_counts"][slot], new, 1)
        query_len = facts.query[row] if facts.params["offsets"] else 0
        right["advanced"][slot] += query_len - rejected[row]
    yield "all_token_ids", right["all_token_ids"], "does not continue with the sampled tokens"
    yield "total_len", right["total_len"], "does not grow by the sampled tokens"
    yield "last_sampled_tokens", right["last_sampled_tokens"], "is not the last sampled token"
    if facts.params["counted"]:
        yield "output_bin_counts", right["output_bin_counts"], "does not count the sampled tokens"
    yield "num_computed_tokens", right["advanced"], "is not c + q - rejected"


def _advanced(facts: StepFacts) -> Right:
    computed = facts.before["num_computed_tokens"].astype(np.int64)
    computed[facts.slots[facts.live]] += facts.query[facts.live]
    yield "num_computed_tokens", computed, "is not c + q"


def _counted(call: Call, result: Any) -> Outputs:
    """Return both tensors, the second one without what is behind the rows: that is don't care."""
    sampled, rejected = result
    rows = len(call["idx_mapping"]) if rejected.shape == sampled.shape else None
    return {"sampled": sampled, _REJECTED: rejected[:rows]}


def _past_prompt(case: Case) -> bool:
    """True if a row with a request is past its prompt."""
    rows = case.params["rows"]
    return any(
        row["slot"] >= 0 and row["computed"] + row["query"] >= row["prefill"] for row in rows
    )


get_num_sampled_and_rejected = step_operation(
    reference.get_num_sampled_and_rejected,
    "sampled and rejected tokens of each row, none in a prompt",
    results=_counted,
    expect=_counts,
    faults={
        "more sampled tokens than logits": Fault(
            _SAMPLED, lambda sampled: sampled + 2000, applies=_past_prompt, cpu_only=True
        ),
        "negative sampled tokens": Fault(
            _SAMPLED, lambda sampled: -1 - sampled, applies=_past_prompt, cpu_only=True
        ),
    },
)


def _maybe(facts: StepFacts) -> dict[str, Any]:
    """Return None for the tensors that the call does not get."""
    params = facts.params
    optional = {"output_bin_counts": params["counted"], "query_start_loc": params["offsets"]}
    return {name: None for name, is_passed in optional.items() if not is_passed}


def _has_counts(case: Case) -> bool:
    return bool(case.params["counted"])


def _samples(case: Case) -> bool:
    """True if a row with a request samples a token past its prompt."""
    rows = case.params["rows"]
    return any(
        row["slot"] >= 0 and row["computed"] + row["query"] >= row["prefill"] and row["sampled"]
        for row in rows
    )


post_update = step_operation(
    reference.post_update,
    "sampled tokens added to the state of request slots",
    sources={"num_computed_tokens": "advanced", _SAMPLED: "counted"},
    scalars=_maybe,
    expect=_updated,
    dummies=True,
    faults={
        "more sampled tokens than columns": Fault(
            _SAMPLED, lambda sampled: sampled + 2000, applies=has_live_rows, cpu_only=True
        ),
        "negative sampled tokens": Fault(
            _SAMPLED, lambda sampled: -1 - sampled, applies=has_live_rows, cpu_only=True
        ),
        "no room for the sampled tokens": Fault(
            "total_len",
            lambda values, mapping: set_live(values, mapping, 2**30),
            applies=has_live_rows,
            reads=_MAPPING,
            cpu_only=True,
        ),
        "more rejected tokens than computed ones": Fault(
            _REJECTED, lambda rejected: rejected + 2**30, applies=has_live_rows, cpu_only=True
        ),
        "negative rejected tokens": Fault(
            _REJECTED, lambda rejected: -1 - rejected, applies=has_live_rows, cpu_only=True
        ),
        "token outside the vocabulary": Fault(
            "sampled_tokens",
            lambda tokens: tokens * 0 + 1024,
            applies=lambda case: _samples(case) and _has_counts(case),
            cpu_only=True,
        ),
    },
)

post_update_num_computed_tokens = step_operation(
    reference.post_update_num_computed_tokens,
    "query tokens added to the computed ones",
    expect=_advanced,
)

OPERATIONS = (get_num_sampled_and_rejected, post_update, post_update_num_computed_tokens)
