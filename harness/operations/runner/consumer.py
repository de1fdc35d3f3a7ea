"""Consumer of a runner's steps: the tokens, blocks and slots that a model would use.

The scheduler of the case knows every token and block; the reference is never used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.place import by_step, place_of
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.runner.judge import slot_violations, table_violations
from attnproof.harness.operations.runner.lines import Runner
from attnproof.harness.operations.runner.scheduler import Scheduled, Scheduler


def steps_consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Yield the violations of the first step that a model would compute wrongly."""
    params, index, steps = call.facts.case.params, 0, by_step(outputs)
    runner = Runner(params, 0)
    for step in params["steps"]:
        line = runner.line(step)
        if line is None:
            continue
        if not line.raises:
            seen = steps[index]
            if seen.get("raises", "never") is not None:
                return  # the sequence ended here
            violations = list(_step_violations(runner, seen))
            for violation in violations:
                yield violation._replace(field=place_of(violation.field)._replace(step=index))
            if violations:
                return
        index += 1


def _step_violations(runner: Runner, seen: Outputs) -> Iterator[Violation]:
    if runner.step is not None:
        yield from _inputs(runner.step, seen)
        yield from _blocks(runner.scheduler, runner.step, seen)
    elif runner.kind == "dummy":
        yield from _dummies(runner.scheduler, seen)
    elif runner.kind in ("sample", "pool"):
        yield from _state(runner.scheduler, seen)


def _inputs(step: Scheduled, seen: Outputs) -> Iterator[Violation]:
    """Check the token at each position, the lengths, and the tokens with logits."""
    where = [(row, row.computed + i) for row in step.rows for i in range(row.query)]
    tokens = [row.request.token(position) for row, position in where]
    yield from _differs("input_ids", seen, tokens, "is not the token at its position")
    positions = [position for _, position in where]
    yield from _differs("positions", seen, positions, "is not the token's position")
    lengths = seen["seq_lens"].tolist()
    right = [row.end for row in step.rows]
    if lengths[: len(right)] != right:
        yield Violation("seq_lens", "is not the length of the sequence")
    if any(lengths[len(right) :]):
        yield Violation("seq_lens", "is not 0 behind the last row")
    ends = np.cumsum([row.query for row in step.rows]).tolist()
    spans = [range(end - row.logits, end) for row, end in zip(step.rows, ends, strict=True)]
    indices = [token for span in spans for token in span]
    yield from _differs("logits", seen, indices, "is not the token that has the logit")
    slots = [row.slot for row in step.rows for _ in range(row.logits)]
    yield from _differs("expanded slots", seen, slots, "is not the slot of the logit's row")


def _differs(field: str, seen: Outputs, right: Sequence[int], text: str) -> Iterator[Violation]:
    got = seen[field].tolist()
    if len(got) < len(right):
        yield Violation(field, "has fewer entries than the step", f"{len(got)}, not {len(right)}")
        return
    for index, value in enumerate(right):
        if got[index] != value:
            yield Violation(field, text, f"{field}[{index}] is {got[index]}, not {value}")
            return


def _blocks(scheduler: Scheduler, step: Scheduled, seen: Outputs) -> Iterator[Violation]:
    """Check that each token is written to, and each row reads, blocks that the request owns."""
    rows = np.repeat(np.arange(len(step.rows)), [row.query for row in step.rows])
    spans = [np.arange(row.computed, row.end) for row in step.rows]
    positions = np.concatenate([np.zeros(0, dtype=np.int64), *spans])
    writers: list[list[Any]] = [[] for _ in scheduler.block_sizes]
    for rank in range(scheduler.ranks):
        for number, group in enumerate(scheduler.groups(step, rank)):
            whole = seen[f"whole tables of rank {rank}"].values["tables"][number]
            yield from table_violations(f"table {number} of rank {rank}", whole, group)
            slots = seen[f"slots of rank {rank}"][number]
            field = f"slots of rank {rank}"
            yield from slot_violations(field, slots, group, rows, positions)
            writers[number].append(slots[: len(rows)] >= 0)
    for number, (_, ranks) in enumerate(scheduler.sharded_sizes):
        owners = torch.stack(writers[number]).sum(0)
        if bool((owners != scheduler.ranks // ranks).any()):
            yield Violation("slots of rank 0", "leaves a token without a rank, or gives it two")


def _dummies(scheduler: Scheduler, seen: Outputs) -> Iterator[Violation]:
    for rank in range(scheduler.ranks):
        if (seen[f"slots of rank {rank}"] != -1).any():
            yield Violation(f"slots of rank {rank}", "gives a slot to a token of a dummy step")
        tables = seen[f"whole tables of rank {rank}"].values["tables"]
        if any(block for rows in tables for row in rows for block in row):
            yield Violation(f"table 0 of rank {rank}", "names a block in a dummy step")


def _state(scheduler: Scheduler, seen: Outputs) -> Iterator[Violation]:
    """Check the state of all requests that have a slot."""
    for request in scheduler.running:
        slot, tokens = request.slot, request.tokens
        if int(seen["num_computed_tokens"][slot]) != request.computed:
            detail = f"{int(seen['num_computed_tokens'][slot])}, not {request.computed}"
            yield Violation("num_computed_tokens", "is not the number of tokens kept", detail)
            return
        if int(seen["total_len"][slot]) != len(tokens):
            yield Violation("total_len", "is not the number of the request's tokens")
            return
        if seen["all_token_ids"][slot, : len(tokens)].tolist() != tokens:
            yield Violation("all_token_ids", "does not hold the request's tokens")
            return
        samples = len(tokens) > request.prompt
        if samples and int(seen["last_sampled_tokens"][slot, 0]) != tokens[-1]:
            yield Violation("last_sampled_tokens", "is not the last sampled token")
            return
