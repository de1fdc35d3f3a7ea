"""Steps of a runner as numbers, and the calls that they make.

Every number of a step is taken modulo the possible values, so that steps are valid in any
order. A step that does not apply is left out.
"""

from __future__ import annotations

from typing import Any

from attnproof.harness.model.case import Case
from attnproof.harness.model.program import Code, Line, Script, Statement
from attnproof.harness.operations.runner.scheduler import (
    VOCABULARY,
    Request,
    Row,
    Scheduled,
    Scheduler,
)
from attnproof.harness.operations.shared.sequence import Step

TABLES = ("tables", "tables_of_rank_1")
"""Variables of the block tables of each rank."""
FUNCTIONS = (
    "combine_sampled_and_draft_tokens",
    "expand_idx_mapping",
    "get_num_sampled_and_rejected",
    "post_update",
    "post_update_num_computed_tokens",
    "prepare_pos_seq_lens",
    "prepare_prefill_inputs",
)
_IMPORTS = dict.fromkeys(("device", "int32", "int64", "tensor", "zeros"), "torch")
_VARIABLES = ("gathered", "logits", "expanded", "counted", "live")


class Runner:
    """A scheduler, and the calls that a model runner makes for it."""

    def __init__(self, params: dict[str, Any], pattern: int) -> None:
        self.scheduler = Scheduler(params, pattern)
        self.kind = ""
        """Kind of the last step."""
        self.step: Scheduled | None = None
        """The last step if it was scheduled now, None after any other step."""

    def line(self, step: Step) -> Line | None:
        """Apply the step and return its calls as code, None if the step does not apply."""
        code = Code()
        self.kind, self.step = step["do"], None
        label: str | None = getattr(self, f"_{self.kind}")(code, step)
        if label is None:
            return None
        return Line(label, code.statements, self.kind == "overflow", self.kind)

    def _tables(self, code: Code) -> list[Code]:
        """Return the variables of the block tables."""
        return [getattr(code, table) for table in TABLES[: self.scheduler.ranks]]

    def _add(self, code: Code, step: Step) -> str | None:
        request = self.scheduler.add(step["tokens"], step["cached"])
        return None if request is None else self._start(code, "add", request)

    def _resume(self, code: Code, step: Step) -> str | None:
        request = self.scheduler.resume(step["cached"])
        return None if request is None else self._start(code, "resume", request)

    def _start(self, code: Code, word: str, request: Request) -> str:
        slot, tokens = request.slot, list(request.tokens)
        code.num_computed_tokens[slot] = request.computed
        code.prefill_len[slot] = request.prompt
        code.total_len[slot] = len(tokens)
        code.all_token_ids[slot, 0 : len(tokens)] = code.tensor(tokens, dtype=code.int32)
        code.output_bin_counts[slot] = 0
        self._append(code, request, request.blocks, overwrite=True)
        words = f"{len(tokens)} tokens, {request.computed} computed"
        return f"{word} {request.name} in slot {slot}: {words}"

    def _append(
        self, code: Code, request: Request, blocks: list[list[int]], *, overwrite: bool
    ) -> None:
        for table in self._tables(code):
            table.append_block_ids(request.slot, tuple(blocks), overwrite)

    def _schedule(self, code: Code, step: Step) -> str:
        sizes = (step["first"], step["pad_reqs"], step["pad_tokens"])
        scheduled, grown = self.scheduler.schedule(step["lens"], *sizes)
        self.step = scheduled
        for request, new in grown:
            self._append(code, request, new, overwrite=False)
        tables = self._tables(code)
        for table in tables:
            table.apply_staged_writes()
        _set_step_inputs(code, scheduled, "int64" if step["wide"] else "int32")
        logits = sum(row.logits for row in scheduled.rows)
        _prepare(code, logits, self.scheduler.drafts + 1)
        rows = code.rows
        code.gathered = [table.gather_block_tables(rows, scheduled.padded_rows) for table in tables]
        groups = self.scheduler.groups(scheduled, 0)
        code.live = [list(map(len, group.blocks)) for group in groups]
        for table in tables:
            table.compute_slot_mappings(rows, code.starts, code.positions, scheduled.padded_tokens)
        words = ", ".join(f"{row.request.name}: {row.query}" for row in scheduled.rows)
        padded = f"padded to {scheduled.padded_rows} rows, {scheduled.padded_tokens} tokens"
        return f"schedule {words or 'nothing'}, {padded}"

    def _draft(self, code: Code, step: Step) -> str | None:
        drafted = self.scheduler.draft(step["lens"])
        if not drafted:
            return None
        for request in drafted:
            drafts = code.tensor(list(request.drafts), dtype=code.int64)
            code.draft_tokens[request.slot, 0 : len(request.drafts)] = drafts
        words = ", ".join(f"{request.name}: {len(request.drafts)}" for request in drafted)
        return f"draft {words}"

    def _sample(self, code: Code, step: Step) -> str | None:
        if self.scheduler.scheduled is None:
            return None
        results = self.scheduler.sample(step["accepted"])
        most = self.scheduler.drafts + 1
        counts = [len(tokens) for _, tokens, _ in results]
        padded = [tokens + [-1] * (most - len(tokens)) for _, tokens, _ in results]
        _remap(code, [row for row, *_ in results])
        code.num_sampled = code.tensor(counts, dtype=code.int32)
        # Without rows the tensor would have one axis.
        sampled = (
            code.tensor(padded, dtype=code.int64)
            if padded
            else code.zeros(0, most, dtype=code.int64)
        )
        code.sampled = sampled
        code.counted = code.get_num_sampled_and_rejected(
            code.num_sampled, code.seq_lens, code.offsets, code.rows, code.prefill_len
        )
        code.post_update(
            code.rows,
            code.num_computed_tokens,
            code.last_sampled_tokens,
            code.output_bin_counts,
            code.sampled,
            *map(code.counted.__getitem__, (0, 1)),
            code.starts,
            code.all_token_ids,
            code.total_len,
        )
        words = ", ".join(f"{row.request.name}: {valid}" for row, _, valid in results)
        return f"sample {words or 'nothing'}"

    def _pool(self, code: Code, _step: Step) -> str | None:
        scheduled = self.scheduler.scheduled
        if scheduled is None or not self.scheduler.pool():
            return None
        _remap(code, scheduled.rows)
        code.post_update_num_computed_tokens(code.rows, code.num_computed_tokens, code.starts)
        return "finish the step without sampling"

    def _abort(self, code: Code, step: Step) -> str | None:
        request = self._stop(code, step)
        return None if request is None else f"abort {request.name}"

    def _preempt(self, code: Code, step: Step) -> str | None:
        request = self._stop(code, step)
        if request is None:
            return None
        self.scheduler.preempted.append(request)
        return f"preempt {request.name}"

    def _stop(self, code: Code, step: Step) -> Request | None:
        # A runner does nothing when a request leaves; its last rows are not observed any more.
        code.live = None
        return self.scheduler.stop(step["which"])

    def _dummy(self, code: Code, step: Step) -> str:
        reqs = step["reqs"] % (self.scheduler.slots + 1)
        tokens = step["tokens"] % (self.scheduler.max_tokens + 1)
        tables = self._tables(code)
        code.gathered = [table.get_dummy_block_tables(reqs) for table in tables]
        for table in tables:
            table.get_dummy_slot_mappings(tokens)
        code.live = [[] for _ in self.scheduler.block_sizes]
        return f"dummy step of {reqs} requests, {tokens} tokens"

    def _overflow(self, code: Code, step: Step) -> str | None:
        """Append more blocks than a row holds, which is refused."""
        request = self.scheduler.pick(step["which"])
        if request is None:
            return None
        columns = self.scheduler.columns
        group = step["group"] % len(columns)
        new = [[7] if step["overwrite"] else [] for _ in columns]
        new[group] = [7] * (columns[group] + 1)
        self._tables(code)[0].append_block_ids(request.slot, tuple(new), step["overwrite"])
        return f"append {columns[group] + 1} blocks to {request.name} in group {group}, refused"


def _remap(code: Code, rows: list[Row]) -> None:
    """Assign the new mapping of a step of which some requests have lost their slots."""
    if any(row.slot < 0 for row in rows):
        code.rows = code.tensor([row.slot for row in rows], dtype=code.int32)


def _set_step_inputs(code: Code, scheduled: Scheduled, dtype: str) -> None:
    starts, offsets = [0], [0]
    for row in scheduled.rows:
        starts.append(starts[-1] + row.query)
        offsets.append(offsets[-1] + row.logits)
    slots = [row.slot for row in scheduled.rows]
    code.rows = code.tensor(slots, dtype=getattr(code, dtype))
    code.starts = code.tensor(starts, dtype=code.int32)
    code.offsets = code.tensor(offsets, dtype=code.int32)


def _prepare(code: Code, logits: int, most: int) -> None:
    """Prepare the inputs of a step."""
    code.prepare_prefill_inputs(
        code.input_ids,
        code.next_prefill_tokens,
        code.rows,
        code.starts,
        code.all_token_ids,
        code.prefill_len,
        code.num_computed_tokens,
    )
    code.prepare_pos_seq_lens(
        code.rows, code.starts, code.num_computed_tokens, code.positions, code.seq_lens
    )
    code.logits = code.combine_sampled_and_draft_tokens(
        code.input_ids,
        code.rows,
        code.last_sampled_tokens,
        code.starts,
        code.seq_lens,
        code.prefill_len,
        code.draft_tokens,
        code.offsets,
        logits,
    )
    code.expanded = code.expand_idx_mapping(code.rows, logits, code.offsets, most)


def script(case: Case, pattern: int) -> Script:
    """Return the steps of the case as a program; pattern 1 gives the blocks other ids."""
    runner = Runner(case.params, pattern)
    lines = [line for step in case.params["steps"] if (line := runner.line(step)) is not None]
    return Script(_IMPORTS, _setup(runner.scheduler), tuple(lines))


def _setup(scheduler: Scheduler) -> list[Statement]:
    slots, tokens = scheduler.slots, scheduler.max_tokens
    sharded = [ranks > 1 for _, ranks in scheduler.sharded_sizes]
    code = Code()
    for rank in range(scheduler.ranks):
        tables = code.BlockTables(
            scheduler.block_sizes,
            slots,
            tokens,
            scheduler.columns,
            code.device("cpu"),
            scheduler.ranks,
            rank,
            scheduler.turn,
            None,
            sharded,
        )
        setattr(code, TABLES[rank], tables)
    int32, int64 = code.int32, code.int64
    code.input_ids = code.zeros(tokens, dtype=int32)
    code.positions = code.zeros(tokens, dtype=int64)
    code.seq_lens = code.zeros(slots, dtype=int32)
    code.num_computed_tokens = code.zeros(slots, dtype=int32)
    code.prefill_len = code.zeros(slots, dtype=int32)
    code.total_len = code.zeros(slots, dtype=int32)
    code.all_token_ids = code.zeros(slots, scheduler.history, dtype=int32)
    code.last_sampled_tokens = code.zeros(slots, 1, dtype=int64)
    code.draft_tokens = code.zeros(slots, scheduler.drafts, dtype=int64)
    code.next_prefill_tokens = code.zeros(1, slots, dtype=int32)
    code.output_bin_counts = code.zeros(slots, VOCABULARY, dtype=int32)
    for name in _VARIABLES:
        setattr(code, name, None)
    return code.statements
