"""Steps of an engine as numbers, and the calls that they make on a `PersistentBatch`.

The engine holds the state of a scheduler: row, blocks and cached tokens of each request.
Every number of a step is taken modulo the possible values, so that steps are valid in any
order. A step that does not apply is left out.
"""

from __future__ import annotations

from string import ascii_lowercase
from typing import Any

from attnproof.harness.cases.batches.strategies import HIGHEST_BLOCK
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.program import Code, Line, Script
from attnproof.harness.operations.shared.sequence import Step
from attnproof.harness.operations.ubatch.slices import spans_at

_IMPORTS = {
    "SimpleNamespace": "types",
    "int64": "torch",
    "zeros": "torch",
    "UBatchSlice": "attnproof.reference.interface",
}
_VARIABLES = ("row", "metadata", "moved", "counts", "children", "virtual")


class Engine:
    """Requests, rows and free blocks of a scheduler; `line` applies a step."""

    def __init__(self, params: dict[str, Any], pattern: int) -> None:
        sizes = ("max_num_reqs", "max_num_tokens", "max_num_blocks", "block_size")
        self.sizes = [max(1, params[name]) for name in sizes]
        self.max_reqs, self.max_tokens, self.columns, self.block_size = self.sizes
        self.rows: list[str | None] = []
        self.blocks: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}
        self._free = list(range(self.max_reqs * self.columns, 0, -1))
        self._scheduled: dict[str, int] = {}
        self.built: Batch | None = None
        """Batch of the last build, which may be a dummy run; None before the first."""
        self.has_slots = True
        """True if the tokens of the last build have slots, False after a dummy run."""
        self._added = 0
        self._removed: list[str] = []
        """Requests that were removed and not added again."""
        self._pattern = pattern

    @property
    def live(self) -> list[str]:
        """Return the requests in row order."""
        return [req_id for req_id in self.rows if req_id is not None]

    def line(self, step: Step) -> Line | None:
        """Apply the step and return its calls as code, None if the step does not apply."""
        code, kind = Code(), step["do"]
        label: str | None = getattr(self, f"_{kind}")(code, step)
        return None if label is None else code.line(label, refused=kind == "bad", kind=kind)

    def owner(self, block: int) -> str | None:
        """Return the request that has the block now, None without one."""
        block = _block_id(block, int(block > HIGHEST_BLOCK // 2))
        return next((req_id for req_id in self.live if block in self.blocks[req_id]), None)

    def _add(self, code: Code, step: Step) -> str | None:
        if len(self.live) == self.max_reqs:
            return None
        number, self._added = self._added, self._added + 1
        req_id = ascii_lowercase[number] if number < len(ascii_lowercase) else f"r{number}"
        return self._enter(code, req_id, step, free=-1)

    def _resume(self, code: Code, step: Step) -> str | None:
        """Add the request that was removed last once more, with blocks that were freed long ago."""
        if not self._removed or len(self.live) == self.max_reqs:
            return None
        return self._enter(code, self._removed.pop(), step, free=0)

    def _enter(self, code: Code, req_id: str, step: Step, *, free: int) -> str:
        """Give a request a row, and blocks from the end of the free ones: first 0 or last -1."""
        count = min(step["blocks"] % (self.columns + 1), len(self._free))
        held = [self._free.pop(free) for _ in range(count)]
        computed = step["tokens"] % (count * self.block_size + 1)
        cached = (computed,) if computed else ()  # 0 is the default
        if None in self.rows:
            self.rows[self.rows.index(None)] = req_id
        else:
            self.rows.append(req_id)
        self.blocks[req_id], self.computed[req_id] = held, computed
        code.row = code.batch.add_request(req_id, self._ids(held), *cached)
        return f"add request {req_id}: {count} blocks, {computed} tokens cached"

    def _append(self, code: Code, step: Step) -> str | None:
        req_id = self._pick(step["which"])
        if req_id is None:
            return None
        held = self.blocks[req_id]
        count = min(1 + step["blocks"] % self.columns, self.columns - len(held), len(self._free))
        if not count:
            return None
        more = [self._free.pop() for _ in range(count)]
        held += more
        code.batch.append_blocks(req_id, self._ids(more))
        return f"append {count} blocks to request {req_id}"

    def _remove(self, code: Code, step: Step) -> str | None:
        req_id = self._pick(step["which"])
        if req_id is None:
            return None
        self.rows[self.rows.index(req_id)] = None
        self._free += reversed(self.blocks.pop(req_id))
        del self.computed[req_id]
        self._removed.append(req_id)
        code.row = code.batch.remove_request(req_id)
        return f"remove request {req_id}"

    def _condense(self, code: Code, _step: Step) -> str | None:
        """Fill the first hole with the last request."""
        if None not in self.rows:
            return None
        while None in self.rows:
            last = self.rows.pop()
            if last is not None:
                self.rows[self.rows.index(None)] = last
        code.batch.condense()
        return "condense"

    def _swap(self, code: Code, step: Step) -> str | None:
        rows = [row for row, req_id in enumerate(self.rows) if req_id is not None]
        if not rows:
            return None
        i, j = (rows[step[name] % len(rows)] for name in ("i", "j"))
        self.rows[i], self.rows[j] = self.rows[j], self.rows[i]
        code.batch.swap_states(i, j)
        return f"swap rows {i} and {j}"

    def _build(self, code: Code, step: Step) -> str | None:
        if None in self.rows:
            return None
        scheduled = self._schedule(step["lens"])
        rows = min(self.max_reqs, len(scheduled) + step["pad_reqs"])
        tokens = min(self.max_tokens, sum(scheduled.values()) + step["pad_tokens"])
        query_lens = [scheduled[req_id] for req_id in self.live]
        self.built = Batch(
            self.block_size,
            tuple(query_lens),
            tuple(self.computed[req_id] for req_id in self.live),
            tuple(tuple(self.blocks[req_id]) for req_id in self.live),
            padded_requests=rows - len(query_lens),
            padded_tokens=tokens - sum(query_lens),
        )
        self.has_slots = True
        self._scheduled = scheduled
        padded = step["pad_reqs"] or step["pad_tokens"]
        options = (rows, tokens) if padded else ()
        code.metadata = code.batch.build(scheduled, *options)
        words = f", padded to {rows} rows and {tokens} tokens" if padded else ""
        return f"build {_described(scheduled)}{words}"

    def _reorder(self, code: Code, step: Step) -> str | None:
        """Swap the first prefills with the last decodes, as the reference does (section 2)."""
        if None in self.rows or not self.rows:
            return None
        threshold, scheduled = 1 + step["threshold"], self._schedule(step["lens"])
        rows = self.live
        decodes = [row for row, r in enumerate(rows) if scheduled[r] <= threshold]
        prefills = [row for row, r in enumerate(rows) if scheduled[r] > threshold]
        for prefill, decode in zip(prefills, reversed(decodes), strict=False):
            if decode < len(decodes):
                break
            rows[prefill], rows[decode] = rows[decode], rows[prefill]
        self.rows = list(rows)
        code.scheduled = code.SimpleNamespace(num_scheduled_tokens=scheduled)
        code.moved = code.reorder_batch_to_split_decodes_and_prefills(
            code.batch, code.scheduled, threshold
        )
        return f"reorder for {_described(scheduled)}, threshold {threshold}"

    def _split(self, code: Code, step: Step) -> str | None:
        if self.built is None:
            return None
        threshold = 1 + step["threshold"]
        code.counts = code.split_decodes_and_prefills(code.metadata, threshold)
        return f"count decodes and prefills, threshold {threshold}"

    def _advance(self, code: Code, _step: Step) -> str | None:
        room = {r: len(self.blocks[r]) * self.block_size - self.computed[r] for r in self.live}
        scheduled = {r: min(self._scheduled.get(r, 0), room[r]) for r in self.live}
        if not any(scheduled.values()):
            return None
        for req_id, query_len in scheduled.items():
            self.computed[req_id] += query_len
        self._scheduled = {}
        code.batch.advance(scheduled)
        return f"advance {_described(scheduled)}"

    def _reject(self, code: Code, step: Step) -> str | None:
        tokens = step["tokens"]
        rejected = {
            r: min(tokens[number % len(tokens)], self.computed[r])
            for number, r in enumerate(self.live if tokens else ())
        }
        rejected = {req_id: count for req_id, count in rejected.items() if count}
        if not rejected:
            return None
        for req_id, count in rejected.items():
            self.computed[req_id] -= count
        code.batch.reject(rejected)
        return f"reject {_described(rejected)}"

    def _dummy(self, code: Code, step: Step) -> str:
        count = (1 + step["reqs"]) % (1 + self.max_reqs)
        most = min(self.max_tokens, count * self.columns * self.block_size)
        tokens = step["tokens"] % (most + 1)
        query_lens = [tokens // count + (row < tokens % count) for row in range(count)]
        self.built, self.has_slots = self._null_blocks(query_lens), False
        code.metadata = code.batch.build_dummy(count, tokens)
        return f"dummy run of {count} requests, {tokens} tokens"

    def _null_blocks(self, query_lens: list[int]) -> Batch:
        """Return requests without computed tokens that have only the null block."""
        blocks = tuple((0,) * -(-query_len // self.block_size) for query_len in query_lens)
        return Batch(self.block_size, tuple(query_lens), (0,) * len(query_lens), blocks)

    def _slots(self, code: Code, _step: Step) -> str | None:
        if self.built is None:
            return None
        metadata = code.metadata
        code.build_slot_mapping(
            metadata.query_start_loc,
            metadata.num_computed_tokens_cpu,
            metadata.block_table_tensor,
            self.block_size,
            out=code.slots,
        )
        return "slots into a buffer that is kept"

    def _cut(self, code: Code, step: Step) -> str | None:
        if self.built is None:
            return None
        tokens = self.built.num_tokens + self.built.padded_tokens
        if not tokens or not self.built.num_requests:
            return None
        cut = step["at"] % tokens
        slices = [
            code.UBatchSlice(slice(r0, r1), slice(t0, t1))
            for r0, r1, t0, t1 in spans_at(self.built, [cut])
        ]
        code.children = code.split_attn_metadata(slices, code.metadata)
        return f"cut the batch at token {cut}"

    def _local(self, code: Code, step: Step) -> str | None:
        if self.built is None:
            return None
        chunk = self.block_size * (1 + step["blocks"] % self.columns)
        code.virtual = code.make_local_attention_virtual_batches(
            chunk, code.metadata, self.block_size
        )
        return f"virtual batches of {chunk} tokens"

    def _bad(self, code: Code, step: Step) -> str | None:
        """Add a malformed call, which must raise and change nothing."""
        # A schedule without tokens would not show a build that stops half way.
        live, all_covered, batch = self.live, self._schedule([1]), code.batch
        bad = {"remove an unknown request": batch.remove_request("unknown")}
        bad["swap a row that is not there"] = batch.swap_states(0, len(self.rows))
        bad["dummy of too many rows"] = batch.build_dummy(self.max_reqs + 1, 1)
        bad["reject tokens of an unknown request"] = batch.reject({"unknown": 1})
        bad["advance an unknown request"] = batch.advance(all_covered | {"unknown": 1})
        if len(live) == self.max_reqs:
            bad["add to a full batch"] = batch.add_request("one more", [])
        else:
            many = [7] * (self.columns + 1)
            bad["add with too many blocks"] = batch.add_request("one more", many)
        if live:
            first = live[0]
            uncomputed = {first: self.computed[first] + 1}
            bad["reject more tokens than are computed"] = batch.reject(uncomputed)
            more = [7] * (self.columns - len(self.blocks[first]) + 1)
            beyond = len(self.blocks[first]) * self.block_size - self.computed[first] + 1
            bad["add a request twice"] = batch.add_request(first, [7])
            bad["append too many blocks"] = batch.append_blocks(first, more)
            bad["build without a request's entry"] = batch.build({})
            bad["build beyond the blocks"] = batch.build(all_covered | {first: beyond})
            wrapped = all_covered | {first: 2**63 - 1}
            bad["build more tokens than int64 counts"] = batch.build(wrapped)
            bad["advance by more tokens than int64 counts"] = batch.advance(wrapped)
            bad["build for too few rows"] = batch.build(all_covered, len(live) - 1)
        begun = next((req_id for req_id in live if self.computed[req_id]), None)
        if begun is not None and len(live) > 1:  # the first entry is good
            last = next(req_id for req_id in reversed(live) if req_id != begun)
            counts = {begun: 1, last: self.computed[last] + 1}
            bad["reject tokens of two requests, too many of the second"] = batch.reject(counts)
        if None in self.rows:
            bad["build with a hole"] = batch.build(all_covered)
        index: int = step["kind"] % len(bad)
        label = list(bad)[index]
        code.statements[:] = [bad[label]]
        return label

    def _pick(self, which: int) -> str | None:
        live = self.live
        return live[which % len(live)] if live else None

    def _ids(self, blocks: list[int]) -> list[int]:
        return [_block_id(block, self._pattern) for block in blocks]

    def _schedule(self, lens: list[int]) -> dict[str, int]:
        """Return the query tokens of each request: at most what its blocks and the buffers hold."""
        scheduled, left = {}, self.max_tokens
        for number, req_id in enumerate(self.blocks):  # in order of arrival
            wanted = lens[number % len(lens)] if lens else 0
            room = len(self.blocks[req_id]) * self.block_size - self.computed[req_id]
            scheduled[req_id] = min(wanted, room, left)
            left -= scheduled[req_id]
        return scheduled


def script(case: Case, pattern: int) -> Script:
    """Return the steps of the case as a program; pattern 1 gives the blocks other ids."""
    engine = Engine(case.params, pattern)
    lines = [line for step in case.params["steps"] if (line := engine.line(step)) is not None]
    setup = Code()
    setup.batch = setup.PersistentBatch(*engine.sizes)
    setup.slots = setup.zeros(engine.max_tokens, dtype=setup.int64)
    for name in _VARIABLES:
        setattr(setup, name, None)
    return Script(_IMPORTS, setup.statements, tuple(lines))


def engine_after(case: Case, line: int) -> Engine:
    """Return the scheduler's state after that line of the code."""
    engine, lines = Engine(case.params, 0), 0
    for step in case.params["steps"]:
        lines += engine.line(step) is not None
        if lines > line:
            break
    return engine


def _block_id(block: int, pattern: int) -> int:
    """Return the id that the block has in the program; the function is its own inverse."""
    return HIGHEST_BLOCK - block if pattern else block


def _described(scheduled: dict[str, int]) -> str:
    return ", ".join(f"{req_id}: {tokens}" for req_id, tokens in scheduled.items()) or "nothing"
