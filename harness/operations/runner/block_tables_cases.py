"""Cases of `BlockTables`: a step of a batch in one or several KV-cache groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec
import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches.request_rows import pattern_of, request_rows
from attnproof.harness.cases.batches.strategies import (
    HIGHEST_BLOCK,
    batches,
    block_lists,
    make_batch,
)
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.model.call import Call, Facts, Quantity
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.operations.runner.judge import Group
from attnproof.harness.operations.shared.metadata import batch_of, token_positions
from attnproof.harness.operations.shared.params import BlockSize, Few, Params, Positive

NAME = "BlockTables"
CONSTRUCTOR_PARAMETERS = (
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


class TablesParams(Params):
    """Parameters of a step of `BlockTables`."""

    enabled: bool
    sharded: bool
    groups: Annotated[list[_GroupParams], msgspec.Meta(max_length=4)]
    """Groups after the first, which has the batch's block size and blocks."""
    cp_size: Annotated[int, msgspec.Meta(ge=1, le=64)]
    cp_rank: Count
    interleave: Positive
    dummies: Annotated[list[Count], msgspec.Meta(max_length=1024)]
    """Rows that get no slots, as a drafter masks them."""
    gather_dummies: bool
    """True if these rows are not gathered either."""
    spare_reqs: Few
    own: bool
    """True if the caller gives the buffers."""
    wide: bool
    """True if `idx_mapping` is int64."""
    uncovered: Count = 0
    """Blocks that each row has not got yet: positions in them have no slot."""
    pointers: bool = True
    """True if the caller gives the addresses of its buffers too."""


@dataclass(frozen=True, kw_only=True)
class StepFacts(Facts):
    """A step in numbers."""

    groups: list[Group]
    """Blocks of each row that is gathered."""
    written: list[Group]
    """Blocks of each row that has slots."""
    slots: list[int]
    """Request slot of each row."""
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


def problem(case: Case) -> str:
    """Return why the case cannot be run, "" if it can."""
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


def unreal(case: Case) -> str:
    """Return why no engine makes the step, "" if one may."""
    if case.params.get("uncovered"):
        return "an engine gives a request its blocks before its tokens"
    if case.params["own"] and not case.params.get("pointers", True):
        return "an engine gives the addresses of its buffers with them"
    gathers = case.params["gather_dummies"] and case.params["dummies"]
    return "an engine gathers rows with a request only" if gathers else ""


def tables_case(batch: Batch, groups: list[dict[str, Any]] | None = None, **params: Any) -> Case:
    """Return the case of a batch; by default one group, one rank, and no dummy rows."""
    base_params: dict[str, Any] = {"enabled": True, "sharded": True, "groups": groups or []}
    base_params |= {"cp_size": 1, "cp_rank": 0, "interleave": 1, "dummies": [], "spare_reqs": 0}
    base_params |= {"gather_dummies": False, "own": False, "wide": False}
    return Case(NAME, msgspec.structs.replace(batch, **_UNUSED), base_params | params)


_SIZES = st.sampled_from((1, 2, 4, 16, 32, 48))
_RARELY = st.integers(0, 3).map(lambda number: number == 3)
_RANKS = st.sampled_from((1, 2, 3, 4))


@st.composite
def tables_cases(draw: st.DrawFn) -> Case:
    """Draw a batch with up to three groups and one to four ranks."""
    batch = draw(batches())
    sizes = draw(st.lists(_SIZES, max_size=2))
    groups = [
        {"block_size": size, "enabled": not draw(_RARELY), "sharded": not draw(_RARELY)}
        for size in sizes
    ]
    cp_size = draw(_RANKS)
    all_sizes = [batch.block_size, *sizes]
    turns = [turn for turn in (1, 2, 4, 16) if all(size % turn == 0 for size in all_sizes)]
    return tables_case(
        batch,
        groups,
        enabled=not draw(_RARELY),
        sharded=not draw(_RARELY),
        cp_size=cp_size,
        cp_rank=draw(st.integers(0, cp_size - 1)),
        interleave=draw(st.sampled_from(turns)),
        dummies=draw(st.lists(st.integers(0, 5), max_size=1)),
        gather_dummies=draw(_RARELY),
        spare_reqs=draw(st.integers(0, 2)),
        own=draw(_RARELY),
        pointers=not draw(_RARELY),
        wide=draw(_RARELY),
        uncovered=int(draw(_RARELY)),
    )


def tables_boundaries() -> Iterator[tuple[str, Case]]:
    """Yield the named cases."""
    mixed = make_batch([1, 5, 2, 3], [7, 0, 4, 9], 4, spare_columns=2, order="descending")
    padded = make_batch([2, 2, 2], [3, 0, 9], 4, padded_requests=2, padded_tokens=4, spare_slots=3)
    two = [{"block_size": 2}, {"block_size": 8, "sharded": False}]
    yield "mixed batch (K33)", tables_case(mixed, spare_reqs=2)
    yield "padded rows and tokens (K29, K32)", tables_case(padded, two, spare_reqs=1)
    yield (
        "shorter request in a longer row (K18)",
        tables_case(make_batch([1], [2], 4, spare_columns=5)),
    )
    yield "rows without slots", tables_case(padded, two, dummies=[0, 2], wide=True)
    yield "dummy rows", tables_case(padded, two, dummies=[0, 2], gather_dummies=True)
    yield (
        "group without slots",
        tables_case(mixed, [{"block_size": 4, "enabled": False}], wide=True),
    )
    for rank in range(2):
        ranked = {"cp_size": 2, "cp_rank": rank, "own": rank == 1}
        yield f"rank {rank} of 2, single positions (K31)", tables_case(padded, two, **ranked)
        yield f"rank {rank} of 2, turns of 2", tables_case(mixed, two, interleave=2, **ranked)
    for turn in (1, 2):
        ranked = {"cp_size": 3, "cp_rank": 1, "interleave": turn}
        yield f"rank 1 of 3, turns of {turn}", tables_case(mixed, two, **ranked)
    yield "last rank of 8, whole blocks", tables_case(mixed, cp_size=8, cp_rank=7, interleave=4)
    yield "no requests", tables_case(make_batch([], [], 4), two)
    yield (
        "no requests, padded",
        tables_case(make_batch([], [], 4, padded_requests=3, padded_tokens=3)),
    )
    yield "rows without tokens", tables_case(make_batch([0, 3, 0, 0], [5, 2, 0, 9], 4), two)
    for block_size in (1, 16, 256):
        highest = make_batch([3, 2], [block_size - 1, 0], block_size, first=HIGHEST_BLOCK - 4)
        yield f"highest block ids, block size {block_size} (K15)", tables_case(highest, own=True)
    for tokens in (511, 512, 513):
        yield (
            f"{tokens} tokens",
            tables_case(make_batch([tokens - 1, 1], [5, 2], 16, spare_slots=1)),
        )
    for columns in (1023, 1024, 1025):
        yield f"{columns} columns", tables_case(make_batch([1, 1], [columns - 1, 3], 1), two)
    yield (
        "many requests",
        tables_case(
            make_batch(
                [1 + row % 3 for row in range(130)],
                [row % 7 for row in range(130)],
                4,
                order="shuffled",
            ),
            spare_reqs=3,
        ),
    )
    yield "positions behind the live blocks", tables_case(mixed, two, uncovered=1)
    yield "no block yet", tables_case(padded, two, uncovered=9, own=True)
    yield "caller's buffers", tables_case(padded, two, own=True, wide=True)
    own = {"own": True, "pointers": False}
    yield "caller's buffers without their addresses", tables_case(padded, two, **own)


def tables_of_batch(batch: Batch) -> Iterator[Case]:
    """Yield a batch of an engine with a second group that is not sharded."""
    ranks = 1 + batch.num_tokens % 2
    groups: list[dict[str, Any]] = [{"block_size": 2 * batch.block_size, "sharded": False}]
    case = tables_case(batch, groups, cp_size=ranks, cp_rank=ranks - 1, interleave=batch.block_size)
    if not problem(case):
        yield case


def _masked(group: Group, dummies: list[int]) -> Group:
    """Return the group in which dummy rows have no blocks."""
    rows = [() if r in dummies else held for r, held in enumerate(group.blocks)]
    return replace(group, blocks=rows)


def _groups(case: Case) -> list[Group]:
    batch, params = batch_of(case), case.params
    seq_lens = [q + c for q, c in zip(batch.query_lens, batch.computed_lens, strict=True)]
    groups = []
    for number, group in enumerate(_all_groups(case)):
        first = 1 + _GROUP_IDS * number
        size = group["block_size"]
        rows = batch.blocks
        if number:
            rows = block_lists(seq_lens, list(batch.computed_lens), size, first=first)
        columns = max(1, max(map(len, rows), default=0) + batch.spare_columns)
        uncovered = params.get("uncovered", 0)
        rows = tuple(row[: max(0, len(row) - uncovered)] for row in rows)
        groups.append(
            Group(
                block_size=size,
                columns=columns,
                enabled=group["enabled"],
                ranks=params["cp_size"] if group["sharded"] else 1,
                rank=params["cp_rank"],
                turn=params["interleave"],
                blocks=rows,
            )
        )
    return groups


def prepare(case: Case, pattern: int, device: str) -> Call:
    """Return a call with the arguments of the class and of its methods."""
    batch, params, stale = batch_of(case), case.params, STALE_PATTERNS[pattern]
    num_reqs, tokens = batch.num_requests, batch.num_tokens
    slots = max(1, num_reqs + batch.padded_requests + params["spare_reqs"])
    room = max(1, tokens + batch.padded_tokens + batch.spare_slots)
    groups = _groups(case)
    masked = [_masked(group, params["dummies"]) for group in groups]
    taken: list[int] = request_rows(num_reqs, slots, pattern_of(batch)).tolist()
    rows = np.repeat(np.arange(num_reqs), batch.query_lens)
    positions = token_positions(_starts(batch), np.array(batch.computed_lens, dtype=np.int64))
    inputs = _inputs(case, taken, np.append(positions, np.full(room - tokens, stale)), stale)
    buffers = _buffers(groups, slots, room, stale) if params["own"] else {}
    pieces = [
        Piece(name, values, False, (values.shape[1], 1) if values.ndim == 2 else (1,))
        for name, values in (inputs | buffers).items()
    ]
    arena = Arena(pieces, stale, device)
    tables = [arena.tensors[name] for name in buffers if name != "slots"]
    args = dict(zip(CONSTRUCTOR_PARAMETERS, _sizes(case, groups, slots, room, device), strict=True))
    for flags in ("slot_mapping_enabled", "dcp_sharded"):
        if num_reqs % 2 and all(args[flags]):
            args[flags] = None
    args |= {name: arena.tensors[name] for name in inputs}
    args |= {
        "num_reqs_padded": num_reqs + batch.padded_requests,
        "num_tokens_padded": tokens + batch.padded_tokens,
        # A dummy step is as large as the step or, as in a capture, as the buffers.
        "dummy_reqs": slots if num_reqs % 2 else num_reqs + batch.padded_requests,
        "dummy_tokens": room if num_reqs % 2 else tokens + batch.padded_tokens,
        "out": tuple(tables) if params["own"] else None,
        "out_ptrs": params["own"] and params.get("pointers", True),
        "slots": arena.tensors.get("slots"),
        "appended": None,
    }
    return Call(
        args,
        arena=arena,
        written=frozenset(buffers),
        plain_written={"tables": []},
        facts=StepFacts(
            result=Quantity.SLOTS,
            block_size=batch.block_size,
            tokens=tokens,
            groups=masked if params["gather_dummies"] else groups,
            written=masked,
            slots=taken,
            rows=rows,
            positions=positions,
            stale=stale,
        ),
    )


def _starts(batch: Batch) -> np.ndarray:
    """Return (R+1,) the first token of each row."""
    return np.concatenate([[0], np.cumsum(batch.query_lens, dtype=np.int64)])


def _inputs(
    case: Case, taken: list[int], positions: np.ndarray, stale: int
) -> dict[str, np.ndarray]:
    """Return the tensors of the methods; offsets behind those of the rows are stale."""
    params = case.params
    mapping = [-1 if r in params["dummies"] else slot for r, slot in enumerate(taken)]
    dtype = np.int64 if params["wide"] else np.int32
    starts = np.append(_starts(batch_of(case)), [stale] * 3)
    return {
        "idx_mapping": np.array(mapping, dtype=dtype),
        "gathered": np.array(mapping if params["gather_dummies"] else taken, dtype=dtype),
        "query_start_loc": starts.astype(np.int32),
        "positions": positions.astype(np.int64),
    }


def _buffers(groups: list[Group], slots: int, room: int, stale: int) -> dict[str, np.ndarray]:
    """Return the caller's buffers, all stale."""
    tables = {
        f"table {number}": np.full((slots, group.columns), stale, dtype=np.int32)
        for number, group in enumerate(groups)
    }
    return {"slots": np.full((len(groups), room), stale, dtype=np.int64)} | tables


def _sizes(case: Case, groups: list[Group], slots: int, room: int, device: str) -> tuple[Any, ...]:
    """Return the arguments of the class."""
    params = case.params
    return (
        [group.block_size for group in groups],
        slots,
        room,
        [group.columns for group in groups],
        torch.device(device),
        params["cp_size"],
        params["cp_rank"],
        params["interleave"],
        [group.enabled for group in groups],
        [group["sharded"] for group in _all_groups(case)],
    )
