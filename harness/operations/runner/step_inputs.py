"""Operations of SPEC.md section 13 that prepare the inputs of a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from attnproof import reference
from attnproof.harness.model.case import Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.operations.runner.step import StepFacts
from attnproof.harness.operations.runner.step_call import (
    concatenated,
    step_operation,
)

Right = Iterator[tuple[str, np.ndarray, str]]


def _positions(facts: StepFacts) -> Right:
    pos = facts.before["pos"].astype(np.int64)
    pos[: len(facts.rows)] = facts.computed[facts.rows] + facts.places
    yield "pos", pos, "is not the token's position"
    seq_lens = np.zeros(len(facts.before["unset seq_lens"]), dtype=np.int64)
    seq_lens[: len(facts.slots)] = facts.computed + facts.query
    yield "seq_lens", seq_lens, "is not computed plus query tokens, 0 for padded rows"


def _prefill(facts: StepFacts) -> Right:
    history = facts.before["all_token_ids"].astype(np.int64)
    in_prompt = facts.live & (facts.computed < facts.prefill)
    input_ids = facts.before["input_ids"].astype(np.int64)
    tokens = np.flatnonzero(in_prompt[facts.rows])
    rows = facts.rows[tokens]
    input_ids[tokens] = history[facts.slots[rows], facts.computed[rows] + facts.places[tokens]]
    yield "input_ids", input_ids, "is not the prompt's token"
    upcoming = facts.before["next_prefill_tokens"].astype(np.int64)
    for row in np.flatnonzero(in_prompt):
        slot, end = facts.slots[row], facts.computed[row] + facts.query[row]
        following = history[slot, end : facts.prefill[row]][: len(upcoming)]
        upcoming[:, slot] = np.pad(following, (0, len(upcoming) - len(following)))
    yield "next_prefill_tokens", upcoming, "is not the token that comes next, 0 behind the prompt"


def _combined(facts: StepFacts) -> Right:
    ends, new = np.cumsum(facts.query), facts.params["new"]
    first = ends - facts.logits
    right = concatenated(np.arange(a, b) for a, b in zip(first, ends, strict=True))
    yield "result", right, "is not the token that has the logit"
    input_ids = facts.before["input_ids"].astype(np.int64)
    drafts, last = (facts.before[name] for name in ("draft_tokens", "last_sampled_tokens"))
    length = facts.computed + facts.query
    for row in np.flatnonzero(facts.live & (facts.logits > 0) & (length > facts.prefill)):
        slot, count = facts.slots[row], facts.logits[row]
        if new and length[row] - count >= facts.prefill[row]:
            input_ids[first[row]] = last[slot, 0]
        input_ids[first[row] + new : ends[row]] = drafts[slot, : count - new]
    yield "input_ids", input_ids, "is not the token to verify"


def _expanded(facts: StepFacts) -> Right:
    yield "slots", np.repeat(facts.slots, facts.logits), "is not the slot of the logit's row"
    places = concatenated(np.arange(count) for count in facts.logits)
    yield "places", places, "is not the logit's place in its row"


def _short_histories(case: Case) -> bool:
    """True if a row in its prompt has more than one token."""
    rows = case.params["rows"]
    return any(row["slot"] >= 0 and row["computed"] < row["prefill"] > 1 for row in rows)


def _has_logits(case: Case) -> bool:
    return any(row["logits"] for row in case.params["rows"])


prepare_pos_seq_lens = step_operation(
    reference.prepare_pos_seq_lens,
    "positions of a step's tokens, and lengths of its sequences",
    sources={"seq_lens": "unset seq_lens"},
    expect=_positions,
    consumed=True,
)
prepare_prefill_inputs = step_operation(
    reference.prepare_prefill_inputs,
    "input tokens of a step's prompts",
    expect=_prefill,
    consumed=True,
    faults={
        "history shorter than the prompt": Fault(
            "all_token_ids",
            lambda tokens: tokens[:, :1],
            applies=_short_histories,
            cpu_only=True,
        ),
        "lookahead of fewer slots": Fault(
            "next_prefill_tokens", lambda tokens: tokens[:, :-1], any_field=True
        ),
    },
)


def _logits(facts: StepFacts) -> dict[str, Any]:
    total = int(facts.logits.sum())
    most = facts.params["drafts"] + facts.params["new"]
    return {
        "num_logits": total,
        "num_new_sampled_tokens": facts.params["new"],
        "total_num_logits": total,
        "max_expand_len": most,
    }


combine_sampled_and_draft_tokens = step_operation(
    reference.combine_sampled_and_draft_tokens,
    "sampled and draft tokens in a step's input, and the tokens with logits",
    scalars=_logits,
    expect=_combined,
    consumed=True,
    faults={
        "another number of logits": Fault("num_logits", lambda total: total + 1, cpu_only=True),
        "fewer drafts than logits": Fault(
            ("draft_tokens", "num_new_sampled_tokens"),
            lambda drafts, _: (drafts[:, :0], 0),
            "cu_num_logits",
            applies=_has_logits,
            cpu_only=True,
        ),
        "more logits than tokens": Fault(
            "query_start_loc",
            lambda starts: starts * 0,
            "cu_num_logits",
            applies=_has_logits,
            cpu_only=True,
        ),
        "two sampled tokens of a slot": Fault(
            "last_sampled_tokens", lambda last: last.repeat(1, 2)
        ),
    },
)
expand_idx_mapping = step_operation(
    reference.expand_idx_mapping,
    "request slot of each logit, and its place in its row",
    scalars=_logits,
    expect=_expanded,
    faults={
        "another number of logits": Fault(
            "total_num_logits", lambda total: total + 1, cpu_only=True
        ),
        "more logits than a row may have": Fault(
            "max_expand_len", lambda _: 0, "cu_num_logits", applies=_has_logits, cpu_only=True
        ),
    },
)

OPERATIONS = (
    prepare_pos_seq_lens,
    prepare_prefill_inputs,
    combine_sampled_and_draft_tokens,
    expand_idx_mapping,
)
