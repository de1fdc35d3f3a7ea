"""Class of SPEC.md section 13 that keeps the blocks of request slots: `BlockTables`.

One case is one step. Earlier requests fill all rows, columns and buffers; then the batch's
requests take their slots, and the step is gathered. `runner_sequence` runs many steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import (
    HIGHEST_BLOCK,
    batches,
    block_lists,
    make_batch,
)
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.model.call import Call, Facts, Free, Outputs, Quantity
from attnproof.harness.model.call_kinds import ClassCall, Clocked
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.runner.block_tables_faults import FAULTS
from attnproof.harness.operations.runner.judge import (
    Group,
    live_part,
    slot_violations,
    table_violations,
)
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.harness.operations.shared.params import BlockSize, Few, Params, Positive

NAME = "BlockTables"
_MADE = (
    "block_sizes",
    "max_num_reqs",
    "max_num_batched_tokens",
    "max_num_blocks_per_group",
    "device",
    "cp_size",
    "cp_rank",
    "cp_interleave",
    "slot_mapping_enabled",
    "dcp_sharded",
)
_UNUSED = {
    "dtype": "int32",
    "strided": False,
    "query_slack": 0,
    "seq_slack": 0,
    "causal": True,
    "logits_indices": None,
    "logits_padding": 0,
    "encoder_seq_lens": None,
    "dcp_local_seq_lens": None,
    "subclassed": False,
}
"""Fields of a case's batch that block tables do not have."""
_MOST_BLOCKS = 2**19
"""Most blocks of earlier requests in a case."""
_GROUP_IDS = 1_000_003
"""Distance of the block ids of two groups."""


class _GroupParams(Params):
    block_size: BlockSize
    enabled: bool = True
    sharded: bool = True


class _Params(Params):
    enabled: bool
    sharded: bool
    groups: Annotated[list[_GroupParams], msgspec.Meta(max_length=4)]
    """Groups after the first, which has the batch's block size and blocks."""
    cp_size: Annotated[int, msgspec.Meta(ge=1, le=64)]
    cp_rank: Count
    interleave: Positive
    dummies: Annotated[list[Count], msgspec.Meta(max_length=1024)]
    """Rows without a request."""
    spare_reqs: Few
    own: bool
    """True if the caller gives the buffers."""
    wide: bool
    """True if `idx_mapping` is int64."""


@dataclass(frozen=True, kw_only=True)
class _StepFacts(Facts):
    batch: Batch
    groups: list[Group]
    mapping: list[int]
    rows: np.ndarray
    """(T,) row of each token."""
    positions: np.ndarray
    stale: int
    """Block id in all columns of earlier requests."""


def _all_groups(case: Case) -> list[dict[str, Any]]:
    params = case.params
    first = {name: params[name] for name in ("enabled", "sharded")}
    more = ({"enabled": True, "sharded": True} | group for group in params["groups"])
    return [first | {"block_size": batch_of(case).block_size}, *more]


def _problem(case: Case) -> str:
    batch, params = batch_of(case), case.params
    wrong = [name for name, value in _UNUSED.items() if getattr(batch, name) != value]
    if wrong:
        return f"batch.{wrong[0]}: block tables have no such field"
    if params["cp_rank"] >= params["cp_size"]:
        return f"cp_rank: {params['cp_rank']}, of {params['cp_size']} ranks"
    most = batch.num_requests + batch.padded_requests + params["spare_reqs"] + 1
    longest = max(map(sum, zip(batch.query_lens, batch.computed_lens, strict=True)), default=0)
    for group in _all_groups(case):
        if (
            params["cp_size"] > 1
            and group["sharded"]
            and group["block_size"] % params["interleave"]
        ):
            return "interleave: does not divide the block size of a sharded group"
        columns = longest // group["block_size"] + batch.spare_columns + 2
        if most * columns > _MOST_BLOCKS:
            return f"batch.spare_columns: {most} rows of {columns} columns are filled one by one"
    return ""


def _case(batch: Batch, groups: list[dict[str, Any]] | None = None, **params: Any) -> Case:
    """Return the case of a batch; by default one group, one rank, and no dummy rows."""
    given: dict[str, Any] = {"enabled": True, "sharded": True, "groups": groups or []}
    given |= {"cp_size": 1, "cp_rank": 0, "interleave": 1, "dummies": [], "spare_reqs": 0}
    given |= {"own": False, "wide": False}
    return Case(NAME, msgspec.structs.replace(batch, **_UNUSED), given | params)


_SIZES = st.sampled_from((1, 2, 4, 16, 32))
_RARELY = st.integers(0, 3).map(lambda lot: lot == 3)
_RANKS = st.sampled_from((1, 2, 4))


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    batch = draw(batches())
    sizes = draw(st.lists(_SIZES, max_size=2))
    groups = [
        {"block_size": size, "enabled": not draw(_RARELY), "sharded": not draw(_RARELY)}
        for size in sizes
    ]
    cp_size = draw(_RANKS)
    all_sizes = [batch.block_size, *sizes]
    turns = [turn for turn in (1, 2, 4, 16) if all(size % turn == 0 for size in all_sizes)]
    return _case(
        batch,
        groups,
        enabled=not draw(_RARELY),
        sharded=not draw(_RARELY),
        cp_size=cp_size,
        cp_rank=draw(st.integers(0, cp_size - 1)),
        interleave=draw(st.sampled_from(turns)),
        dummies=draw(st.lists(st.integers(0, 5), max_size=1)),
        spare_reqs=draw(st.integers(0, 2)),
        own=draw(_RARELY),
        wide=draw(_RARELY),
    )


def _boundaries() -> Iterator[tuple[str, Case]]:
    mixed = make_batch([1, 5, 2, 3], [7, 0, 4, 9], 4, spare_columns=2, order="descending")
    padded = make_batch([2, 2, 2], [3, 0, 9], 4, padded_requests=2, padded_tokens=4, spare_slots=3)
    two = [{"block_size": 2}, {"block_size": 8, "sharded": False}]
    yield "mixed batch", _case(mixed, spare_reqs=2)
    yield "padded rows and tokens", _case(padded, two, spare_reqs=1)
    yield "shorter request in a longer row (K18)", _case(make_batch([1], [2], 4, spare_columns=5))
    yield "dummy rows", _case(padded, two, dummies=[0, 2], wide=True)
    yield "group without slots", _case(mixed, [{"block_size": 4, "enabled": False}], wide=True)
    for rank in range(2):
        ranked = {"cp_size": 2, "cp_rank": rank, "own": rank == 1}
        yield f"rank {rank} of 2, single positions", _case(padded, two, **ranked)
        yield f"rank {rank} of 2, turns of 2", _case(mixed, two, interleave=2, **ranked)
    yield "last rank of 8, whole blocks", _case(mixed, cp_size=8, cp_rank=7, interleave=4)
    yield "no requests", _case(make_batch([], [], 4), two)
    yield "no requests, padded", _case(make_batch([], [], 4, padded_requests=3, padded_tokens=3))
    yield "rows without tokens", _case(make_batch([0, 3, 0, 0], [5, 2, 0, 9], 4), two)
    for block_size in (1, 16, 256):
        highest = make_batch([3, 2], [block_size - 1, 0], block_size, first=HIGHEST_BLOCK - 4)
        yield f"highest block ids, block size {block_size} (K15)", _case(highest, own=True)
    for tokens in (511, 512, 513):
        yield f"{tokens} tokens", _case(make_batch([tokens - 1, 1], [5, 2], 16, spare_slots=1))
    for columns in (1023, 1024, 1025):
        yield f"{columns} columns", _case(make_batch([1, 1], [columns - 1, 3], 1), two)
    yield (
        "many requests",
        _case(make_batch([1] * 130, [7] * 130, 4, order="shuffled"), spare_reqs=3),
    )
    yield "caller's buffers", _case(padded, two, own=True, wide=True)


def _from_batch(batch: Batch) -> Iterator[Case]:
    ranks = 1 + batch.num_tokens % 2
    groups: list[dict[str, Any]] = [{"block_size": 2 * batch.block_size, "sharded": False}]
    found = _case(batch, groups, cp_size=ranks, cp_rank=ranks - 1, interleave=batch.block_size)
    if not _problem(found):
        yield found


def _groups(case: Case, columns: list[int]) -> list[Group]:
    batch, params = batch_of(case), case.params
    seq_lens = [q + c for q, c in zip(batch.query_lens, batch.computed_lens, strict=True)]
    made = []
    for number, group in enumerate(_all_groups(case)):
        first = 1 + _GROUP_IDS * number
        size = group["block_size"]
        rows = batch.blocks
        if number:
            rows = block_lists(seq_lens, list(batch.computed_lens), size, first=first)
        rows = tuple(() if r in params["dummies"] else row for r, row in enumerate(rows))
        columns.append(max(1, max(map(len, rows), default=0) + batch.spare_columns))
        made.append(
            Group(
                block_size=size,
                columns=columns[-1],
                enabled=group["enabled"],
                ranks=params["cp_size"] if group["sharded"] else 1,
                rank=params["cp_rank"],
                turn=params["interleave"],
                blocks=rows,
            )
        )
    return made


def _prepare(case: Case, pattern: int, device: str) -> Call:
    batch, params, stale = batch_of(case), case.params, STALE_PATTERNS[pattern]
    num_reqs, tokens = batch.num_requests, batch.num_tokens
    slots = max(1, num_reqs + batch.padded_requests + params["spare_reqs"])
    room = max(1, tokens + batch.padded_tokens + batch.spare_slots)
    columns: list[int] = []
    groups = _groups(case, columns)
    # Rows and slots differ, so that code which takes one for the other is found.
    mapping = [-1 if r in params["dummies"] else slots - 1 - r for r in range(num_reqs)]
    starts = np.concatenate([[0], np.cumsum(batch.query_lens, dtype=np.int64)]).astype(np.int32)
    rows = np.repeat(np.arange(num_reqs), batch.query_lens)
    positions = (
        np.arange(tokens) + (np.array(batch.computed_lens, dtype=np.int64) - starts[:-1])[rows]
    )
    padding = np.full(room - tokens, stale, dtype=np.int64)
    dtype = np.int64 if params["wide"] else np.int32
    given = {
        "idx_mapping": np.array(mapping, dtype=dtype),
        "query_start_loc": np.append(starts, np.full(3, stale, dtype=np.int32)).astype(np.int32),
        "positions": np.concatenate([positions, padding]).astype(np.int64),
    }
    buffers = {}
    if params["own"]:
        buffers["slots"] = np.full((len(groups), room), stale, dtype=np.int64)
        for number, group in enumerate(groups):
            buffers[f"table {number}"] = np.full((slots, group.columns), stale, dtype=np.int32)
    pieces = [
        Piece(name, values, False, (values.shape[1], 1) if values.ndim == 2 else (1,))
        for name, values in (given | buffers).items()
    ]
    arena = Arena(pieces, stale, device)
    flags = [
        [group.enabled, flag["sharded"]]
        for group, flag in zip(groups, _all_groups(case), strict=True)
    ]
    made = ([group.block_size for group in groups], slots, room, columns, torch.device(device))
    ranks = (params["cp_size"], params["cp_rank"], params["interleave"])
    args = dict(zip(_MADE, (*made, *ranks, *map(list, zip(*flags, strict=True))), strict=True))
    args |= {name: arena.tensors[name] for name in given}
    args |= {"num_reqs_padded": num_reqs + batch.padded_requests}
    args |= {"num_tokens_padded": tokens + batch.padded_tokens}
    args |= {"out": None, "slots": arena.tensors.get("slots"), "appended": None}
    if params["own"]:
        args["out"] = tuple(arena.tensors[f"table {number}"] for number in range(len(groups)))
    return Call(
        args,
        arena=arena,
        written=frozenset(buffers),
        plain_written={"tables": []},
        facts=_StepFacts(
            result=Quantity.SLOTS,
            block_size=batch.block_size,
            tokens=tokens,
            batch=batch,
            groups=groups,
            mapping=mapping,
            rows=rows,
            positions=positions,
            stale=stale,
        ),
    )


def _make(offered: Any, call: Call) -> Any:
    """Return block tables with the requests of the case, after others that used all rows."""
    facts = call.facts
    tables = offered(*(call[name] for name in _MADE))
    slots, columns = call["max_num_reqs"], call["max_num_blocks_per_group"]
    for slot in range(slots):
        tables.append_block_ids(slot, tuple([facts.stale] * width for width in columns), True)
    tables.apply_staged_writes()
    _leave_stale(tables, call)
    for row, slot in enumerate(facts.mapping):
        if slot < 0:
            continue
        blocks = [list(group.blocks[row]) for group in facts.groups]
        cuts = [len(held) // 2 for held in blocks]
        parts = [held[:cut] for held, cut in zip(blocks, cuts, strict=True)]
        tables.append_block_ids(slot, tuple(parts), True)
        if row % 2:
            tables.apply_staged_writes()
        rest = [held[cut:] for held, cut in zip(blocks, cuts, strict=True)]
        tables.append_block_ids(slot, tuple(rest), False)
    tables.apply_staged_writes()
    return tables


def _leave_stale(tables: Any, call: Call) -> None:
    """Run a step of the earlier requests through all rows and tokens of the buffers."""
    slots, tokens = call["max_num_reqs"], call["max_num_batched_tokens"]
    device = call["device"]
    everyone = torch.arange(slots, dtype=torch.int32, device=device)
    tables.gather_block_tables(everyone, slots)
    starts = torch.full((slots + 1,), tokens, dtype=torch.int32, device=device)
    starts[0] = 0
    positions = torch.zeros(tokens, dtype=torch.int64, device=device)
    tables.compute_slot_mappings(everyone, starts, positions, tokens)


def _step(tables: Any, call: Call) -> tuple[Any, Any]:
    """Return the gathered tables and the slots of the step."""
    own = call["out"]
    pointers = None
    if own is not None:
        addresses = [table.data_ptr() for table in own]
        pointers = torch.tensor(addresses, dtype=torch.uint64, device=call["device"])
    gathered = tables.gather_block_tables(
        call["idx_mapping"], call["num_reqs_padded"], own, pointers
    )
    slots = tables.compute_slot_mappings(
        call["idx_mapping"],
        call["query_start_loc"],
        call["positions"],
        call["num_tokens_padded"],
        call["slots"],
    )
    return gathered, slots


def _use(offered: Any, call: Call) -> Outputs:
    tables = _make(offered, call)
    if call["appended"] is not None:
        _append_refused(tables, call)
    gathered, slots = _step(tables, call)
    outputs = _step_outputs(call, (gathered, slots))
    whole = tables.slot_mappings if call["slots"] is None else call["slots"]
    outputs["slot buffer"] = whole.clone()
    outputs["persistent"] = call["out"] is not None or [
        not view.numel() or view.data_ptr() == buffer.data_ptr()
        for view, buffer in zip(
            (*gathered, slots), (*tables.input_block_tables, tables.slot_mappings), strict=True
        )
    ]
    dummies = tables.get_dummy_block_tables(call["num_reqs_padded"])
    outputs |= {f"dummy table {group}": table.clone() for group, table in enumerate(dummies)}
    outputs["dummy slots"] = tables.get_dummy_slot_mappings(call["num_tokens_padded"]).clone()
    outputs["dummy slot buffer"] = tables.slot_mappings.clone()
    return outputs


def _step_outputs(call: Call, result: tuple[Any, Any]) -> Outputs:
    gathered, slots = result
    outputs: Outputs = {"groups": len(gathered)}
    for number, (table, group) in enumerate(zip(gathered, call.facts.groups, strict=True)):
        outputs[f"table {number}"] = live_part(table, group)
        outputs[f"whole table {number}"] = Free(table=table.tolist())
    return outputs | {"slots": slots.clone()}


def _append_refused(tables: Any, call: Call) -> None:
    """Make the append that must raise, and record the groups whose rows it changed."""
    slots = call["max_num_reqs"]
    everyone = torch.arange(slots, dtype=torch.int32, device=call["device"])
    before = [table.clone() for table in tables.gather_block_tables(everyone, slots)]
    try:
        tables.append_block_ids(*call["appended"])
    finally:
        tables.apply_staged_writes()
        after = tables.gather_block_tables(everyone, slots)
        call.plain_written["tables"] += [
            number for number, table in enumerate(before) if not torch.equal(table, after[number])
        ]


def _invariants(_call: Call, outputs: Outputs) -> Iterator[Violation]:
    if outputs["persistent"] is not True and not all(outputs["persistent"]):
        yield Violation("persistent", "is not a view of the buffers that graphs have captured")
    for number in range(outputs["groups"]):
        if outputs[f"dummy table {number}"].any():
            yield Violation(f"dummy table {number}", "names a block")
    if (outputs["dummy slot buffer"] != -1).any():
        yield Violation("dummy slot buffer", "gives a slot to a token of a dummy run")


def _consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check that rows name their request's blocks only, and each token's slot in every group."""
    facts = call.facts
    for number, group in enumerate(facts.groups):
        whole = outputs[f"whole table {number}"].values["table"]
        yield from table_violations(f"table {number}", whole, group)
        for field in ("slots", "slot buffer"):
            found = outputs[field][number]
            yield from slot_violations(field, found, group, facts.rows, facts.positions)


def _clocked(offered: Any, call: Call) -> Callable[[], Any]:
    """Return the gather and the slots of a step."""
    tables = _make(offered, call)
    return lambda: _step(tables, call)


block_tables = Operation(
    name=NAME,
    section="13",
    summary="blocks of request slots, and a step's block tables and slots",
    inputs=Inputs(
        params=_Params,
        problem=_problem,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_from_batch,
        faults=FAULTS,
    ),
    call=ClassCall(
        clocked=Clocked(_clocked, _step_outputs),
        prepare=_prepare,
        use=_use,
        outputs=lambda _call, result: result,
        methods=("append_block_ids", "gather_block_tables", "compute_slot_mappings"),
    ),
    contract=Contract(
        invariants=_invariants,
        consume=_consumed,
        may_sync=lambda _: True,  # `use` reads results back between the steps
    ),
    bench=Bench(cases=lambda batch: [_case(batch)]),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (block_tables,)
