"""Steps of a runner as numbers, and the calls that they make.

Every number of a step is taken modulo the possible values, so that steps are valid in any
order. A step that does not apply is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attnproof.harness.model.case import Case
from attnproof.harness.model.program import Let, Line, Name, Script, Statement, do
from attnproof.harness.operations.runner.scheduler import (
    VOCABULARY,
    Request,
    Row,
    Scheduled,
    Scheduler,
)

Step = dict[str, Any]
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
_STATE = ("num_computed_tokens", "prefill_len", "total_len")


class Runner:
    """A scheduler, and the calls that a model runner makes for it."""

    def __init__(self, params: dict[str, Any], pattern: int) -> None:
        self.scheduler = Scheduler(params, pattern)
        self.kind = ""
        """Kind of the last step."""
        self.step: Scheduled | None = None
        """The last step if it was scheduled now, None after any other step."""

    def line(self, step: Step) -> Line | None:
        """Apply the step and return its calls, None if the step does not apply."""
        self.kind, self.step = step["do"], None
        line = _MAKERS[step["do"]](self, step)
        return line and line._replace(kind=step["do"])

    @property
    def tables(self) -> tuple[str, ...]:
        """Variables of the block tables."""
        return TABLES[: self.scheduler.ranks]

    def _add(self, step: Step) -> Line | None:
        request = self.scheduler.add(step["tokens"], step["cached"])
        return None if request is None else self._started("add", request)

    def _resume(self, step: Step) -> Line | None:
        request = self.scheduler.resume(step["cached"])
        return None if request is None else self._started("resume", request)

    def _started(self, word: str, request: Request) -> Line:
        slot, tokens = request.slot, list(request.tokens)
        values = (request.computed, request.prompt, len(tokens))
        place = (slot, slice(0, len(tokens)))
        state: list[Statement] = [
            do(f"{name}.__setitem__", slot, value)
            for name, value in zip(_STATE, values, strict=True)
        ]
        state += [
            do("all_token_ids.__setitem__", place, do("tensor", tokens, dtype=Name("int32"))),
            do("output_bin_counts.__setitem__", slot, 0),
            *self._append(request, request.blocks, overwrite=True),
        ]
        words = f"{len(tokens)} tokens, {request.computed} computed"
        return Line(f"{word} {request.name} in slot {slot}: {words}", state)

    def _append(
        self, request: Request, blocks: list[list[int]], *, overwrite: bool
    ) -> list[Statement]:
        new = tuple(list(held) for held in blocks)
        return [
            do(f"{table}.append_block_ids", request.slot, new, overwrite) for table in self.tables
        ]

    def _schedule(self, step: Step) -> Line:
        sizes = (step["first"], step["pad_reqs"], step["pad_tokens"])
        scheduled, grown = self.scheduler.schedule(step["lens"], *sizes)
        self.step = scheduled
        calls = [
            call for request, new in grown for call in self._append(request, new, overwrite=False)
        ]
        calls += [do(f"{table}.apply_staged_writes") for table in self.tables]
        calls += _step_inputs(scheduled, "int64" if step["wide"] else "int32")
        total, most = sum(row.logits for row in scheduled.rows), self.scheduler.drafts + 1
        calls += _prepared(total, most)
        calls += [
            Let(
                "gathered",
                [
                    do(f"{table}.gather_block_tables", Name("rows"), scheduled.padded_rows)
                    for table in self.tables
                ],
            ),
            Let("live", [list(map(len, group.blocks)) for group in self._groups(scheduled)]),
        ]
        for table in self.tables:
            given = [Name(name) for name in ("rows", "starts", "positions")]
            calls.append(do(f"{table}.compute_slot_mappings", *given, scheduled.padded_tokens))
        words = ", ".join(f"{row.request.name}: {row.query}" for row in scheduled.rows)
        padded = f"padded to {scheduled.padded_rows} rows, {scheduled.padded_tokens} tokens"
        return Line(f"schedule {words or 'nothing'}, {padded}", calls)

    def _groups(self, scheduled: Scheduled) -> Any:
        return self.scheduler.groups(scheduled, 0)

    def _draft(self, step: Step) -> Line | None:
        drafted = self.scheduler.draft(step["lens"])
        if not drafted:
            return None
        calls: list[Statement] = []
        for request in drafted:
            place = (request.slot, slice(0, len(request.drafts)))
            drafts = do("tensor", list(request.drafts), dtype=Name("int64"))
            calls.append(do("draft_tokens.__setitem__", place, drafts))
        words = ", ".join(f"{request.name}: {len(request.drafts)}" for request in drafted)
        return Line(f"draft {words}", calls)

    def _sample(self, step: Step) -> Line | None:
        if self.scheduler.scheduled is None:
            return None
        results = self.scheduler.sample(step["accepted"])
        most = self.scheduler.drafts + 1
        counts = [len(tokens) for _, tokens, _ in results]
        padded = [tokens + [-1] * (most - len(tokens)) for _, tokens, _ in results]
        sampled = do("tensor", padded, dtype=Name("int64"))
        calls: list[Statement] = [
            *_remapped([row for row, *_ in results]),
            Let("num_sampled", do("tensor", counts, dtype=Name("int32"))),
            # Without rows the tensor would have one axis.
            Let("sampled", sampled if padded else do("zeros", 0, most, dtype=Name("int64"))),
            Let("counted", _call("get_num_sampled_and_rejected", *_COUNTED)),
            do(
                "post_update",
                *map(Name, ("rows", "num_computed_tokens", "last_sampled_tokens")),
                *map(Name, ("output_bin_counts", "sampled")),
                do("counted.__getitem__", 0),
                do("counted.__getitem__", 1),
                *map(Name, ("starts", "all_token_ids", "total_len")),
            ),
        ]
        words = ", ".join(f"{row.request.name}: {valid}" for row, _, valid in results)
        return Line(f"sample {words or 'nothing'}", calls)

    def _pool(self, _step: Step) -> Line | None:
        scheduled = self.scheduler.scheduled
        if scheduled is None or not self.scheduler.pool():
            return None
        call = _call("post_update_num_computed_tokens", "rows", "num_computed_tokens", "starts")
        return Line("finish the step without sampling", [*_remapped(scheduled.rows), call])

    def _abort(self, step: Step) -> Line | None:
        request = self.scheduler.stop(step["which"])
        return None if request is None else Line(f"abort {request.name}", _FORGET)

    def _preempt(self, step: Step) -> Line | None:
        request = self.scheduler.stop(step["which"])
        if request is None:
            return None
        self.scheduler.preempted.append(request)
        return Line(f"preempt {request.name}", _FORGET)

    def _dummy(self, step: Step) -> Line:
        reqs = step["reqs"] % (self.scheduler.slots + 1)
        tokens = step["tokens"] % (self.scheduler.max_tokens + 1)
        tables = [do(f"{table}.get_dummy_block_tables", reqs) for table in self.tables]
        calls: list[Statement] = [Let("gathered", tables)]
        calls += [do(f"{table}.get_dummy_slot_mappings", tokens) for table in self.tables]
        calls.append(Let("live", [[] for _ in self.scheduler.block_sizes]))
        return Line(f"dummy step of {reqs} requests, {tokens} tokens", calls)

    def _overflow(self, step: Step) -> Line | None:
        """Append more blocks than a row holds, which is refused."""
        request = self.scheduler.pick(step["which"])
        if request is None:
            return None
        columns = self.scheduler.columns
        group = step["group"] % len(columns)
        new = [[7] if step["overwrite"] else [] for _ in columns]
        new[group] = [7] * (columns[group] + 1)
        calls = self._append(request, new, overwrite=step["overwrite"])
        label = f"append {columns[group] + 1} blocks to {request.name} in group {group}, refused"
        return Line(label, calls[:1], raises=True)


_FORGET = (Let("live", None),)
"""A runner does nothing when a request leaves; its last rows are not observed any more."""
_COUNTED = ("num_sampled", "seq_lens", "offsets", "rows", "prefill_len")


def _call(function: str, *names: str) -> Any:
    return do(function, *map(Name, names))


def _remapped(rows: list[Row]) -> list[Statement]:
    """Return the new mapping of a step of which some requests have lost their slots."""
    if all(row.slot >= 0 for row in rows):
        return []
    return [Let("rows", do("tensor", [row.slot for row in rows], dtype=Name("int32")))]


def _step_inputs(scheduled: Scheduled, dtype: str) -> list[Statement]:
    starts, offsets = [0], [0]
    for row in scheduled.rows:
        starts.append(starts[-1] + row.query)
        offsets.append(offsets[-1] + row.logits)
    slots = [row.slot for row in scheduled.rows]
    return [
        Let("rows", do("tensor", slots, dtype=Name(dtype))),
        Let("starts", do("tensor", starts, dtype=Name("int32"))),
        Let("offsets", do("tensor", offsets, dtype=Name("int32"))),
    ]


def _prepared(total: int, most: int) -> list[Statement]:
    """Return the calls that prepare the inputs of a step."""
    prefill = ("input_ids", "next_prefill_tokens", "rows", "starts", "all_token_ids")
    combined = ("input_ids", "rows", "last_sampled_tokens", "starts", "seq_lens", "prefill_len")
    lengths = ("rows", "starts", "num_computed_tokens", "positions", "seq_lens")
    return [
        _call("prepare_prefill_inputs", *prefill, "prefill_len", "num_computed_tokens"),
        _call("prepare_pos_seq_lens", *lengths),
        Let(
            "logits",
            do(
                "combine_sampled_and_draft_tokens",
                *map(Name, (*combined, "draft_tokens", "offsets")),
                total,
            ),
        ),
        Let("expanded", do("expand_idx_mapping", Name("rows"), total, Name("offsets"), most)),
    ]


_MAKERS: dict[str, Callable[[Runner, Step], Line | None]] = {
    "add": Runner._add,
    "schedule": Runner._schedule,
    "draft": Runner._draft,
    "sample": Runner._sample,
    "pool": Runner._pool,
    "abort": Runner._abort,
    "preempt": Runner._preempt,
    "resume": Runner._resume,
    "dummy": Runner._dummy,
    "overflow": Runner._overflow,
}


def script(case: Case, pattern: int) -> Script:
    """Return the steps of the case as a program; pattern 1 gives the blocks other ids."""
    runner = Runner(case.params, pattern)
    lines = [line for step in case.params["steps"] if (line := runner.line(step)) is not None]
    return Script(_IMPORTS, _setup(runner.scheduler), tuple(lines))


def _setup(scheduler: Scheduler) -> list[Statement]:
    slots, tokens, most = scheduler.slots, scheduler.max_tokens, scheduler.drafts
    sharded = [ranks > 1 for _, ranks in scheduler.sharded_sizes]
    made: list[Statement] = [
        Let(
            TABLES[rank],
            do(
                "BlockTables",
                scheduler.block_sizes,
                slots,
                tokens,
                scheduler.columns,
                do("device", "cpu"),
                scheduler.ranks,
                rank,
                scheduler.turn,
                None,
                sharded,
            ),
        )
        for rank in range(scheduler.ranks)
    ]
    shapes: dict[str, tuple[tuple[int, ...], str]] = {
        "input_ids": ((tokens,), "int32"),
        "positions": ((tokens,), "int64"),
        "seq_lens": ((slots,), "int32"),
        **dict.fromkeys(_STATE, ((slots,), "int32")),
        "all_token_ids": ((slots, scheduler.history), "int32"),
        "last_sampled_tokens": ((slots, 1), "int64"),
        "draft_tokens": ((slots, most), "int64"),
        "next_prefill_tokens": ((1, slots), "int32"),
        "output_bin_counts": ((slots, VOCABULARY), "int32"),
    }
    made += [
        Let(name, do("zeros", *shape, dtype=Name(dtype))) for name, (shape, dtype) in shapes.items()
    ]
    return [*made, *(Let(name, None) for name in _VARIABLES)]
