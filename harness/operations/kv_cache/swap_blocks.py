"""Operation of SPEC.md section 7: blocks of one layer are copied to another cache.

Bug classes: keys moved without values, part of a block not moved, a stride assumed, source
and destination exchanged, ids taken for slots, products of 32 bits (K15).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import torch
from hypothesis import strategies as st
from msgspec import Meta

from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena
from attnproof.harness.cases.memory.far_memory import far_block
from attnproof.harness.cases.memory.paged_cache import DTYPES, LAYOUTS, PagedCache
from attnproof.harness.model.call import Call
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.operations.kv_cache.block_pairs import (
    DST,
    GAP,
    LAYOUT,
    OF_EACH_SIZE,
    PAIR,
    PAIRS,
    RUNS,
    SMALL,
    SRC,
    BlockFacts,
    FarCache,
    block_work,
    cache_elements,
    cache_outputs,
    cache_problem,
    cache_violations,
    diagnose_blocks,
    elements,
    lay_out_far,
    moved_blocks,
    pair_faults,
    pairs_of,
    pairs_piece,
)
from attnproof.harness.operations.shared.faults import wrong_type
from attnproof.harness.operations.shared.params import CacheDtype, Few, Layout, Pairs, Params

NAME = "swap_blocks"
_PAIRS = "src_to_dst"
_SHAPES = ("block_size", "num_kv_heads", "head_size")


_Size = Annotated[int, Meta(ge=0, le=2**16)]


class _Params(Params):
    src_blocks: _Size
    """Blocks of the source."""
    dst_blocks: _Size
    """Blocks of the destination."""
    block_size: _Size
    """Tokens of a block."""
    num_kv_heads: _Size
    """Heads of keys and values."""
    head_size: _Size
    """Elements of a head."""
    dtype: CacheDtype
    """Dtype of both caches."""
    src_layout: Layout
    """Memory layout of the source."""
    dst_layout: Layout
    """Memory layout of the destination."""
    src_gap: Few
    """Elements between two rows of the source."""
    dst_gap: Few
    """Elements between two rows of the destination."""
    src_on_cpu: bool
    dst_on_cpu: bool
    pairs_on_cpu: bool
    """True if the pairs are on the CPU."""
    strided_pairs: bool
    """True for pairs with gaps between them."""
    same_cache: bool
    """True if source and destination are one cache."""
    pairs: Pairs
    """Block of the source and block of the destination, of each copy."""
    far: bool = False


def _problem(case: Case) -> str:
    p = case.params
    shape = [p[name] for name in _SHAPES]
    elements = max(
        cache_elements(p[f"{side}_blocks"], shape, p[f"{side}_gap"]) for side in ("src", "dst")
    )
    return cache_problem("src_blocks, dst_blocks", elements, is_far=_is_far(case))


def _case(**params: Any) -> Case:
    defaults = {
        "src_blocks": 4,
        "dst_blocks": 4,
        "block_size": 2,
        "num_kv_heads": 2,
        "head_size": 4,
        "dtype": "float16",
        "src_layout": 0,
        "dst_layout": 0,
        "src_gap": 0,
        "dst_gap": 0,
        "src_on_cpu": False,
        "dst_on_cpu": False,
        "pairs_on_cpu": True,
        "strided_pairs": False,
        "same_cache": False,
        "pairs": [[0, 1]],
    }
    # "far": half of the destination's blocks are more than 2**31 elements behind the others.
    return Case(NAME, None, defaults | params)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    layout = draw(LAYOUT)
    return _case(
        src_blocks=draw(st.integers(0, 9)),
        dst_blocks=draw(st.integers(0, 9)),
        **{name: draw(SMALL) for name in _SHAPES[:2]},
        head_size=draw(SMALL | st.sampled_from((8, 32))),
        dtype=draw(st.sampled_from(DTYPES)),
        src_layout=layout,
        dst_layout=draw(st.just(layout) | LAYOUT),
        src_gap=draw(GAP),
        dst_gap=draw(GAP),
        src_on_cpu=draw(st.booleans()),
        dst_on_cpu=draw(st.booleans()),
        pairs_on_cpu=draw(st.booleans()),
        strided_pairs=draw(st.booleans()),
        same_cache=draw(st.sampled_from((False, False, False, True))),
        pairs=draw(st.lists(PAIR, max_size=6)),
    )


def _boundaries() -> Iterator[tuple[str, Case]]:
    yield "one block", _case()
    yield "no pairs", _case(pairs=[])
    yield "caches without blocks", _case(src_blocks=0, dst_blocks=0, pairs=[])
    for name in _SHAPES:
        yield f"{name} of 0", _case(**{name: 0}, pairs=[[0, 3], [1, 0]])
    for size in (1, 3, 33):
        odd = {"num_kv_heads": 1, "block_size": 1, "head_size": size}
        yield f"blocks of {size} elements", _case(**odd, dtype="bfloat16", pairs=[[0, 3]])
        few = odd | {"src_blocks": 1, "dst_blocks": 1, "dtype": "uint8"}
        yield f"one block of {size} bytes", _case(**few, pairs=[[0, 0]])
        gaps = odd | {"src_gap": 1, "dst_gap": 3, "num_kv_heads": 2}
        yield f"rows of {size} elements with gaps", _case(**gaps, pairs=[[0, 3], [2, 1]])
    yield "a block to several places", _case(pairs=[[2, 0], [2, 1], [2, 3]])
    for name, pairs in RUNS.items():
        yield name, _case(src_blocks=9, dst_blocks=9, pairs=pairs)
    yield "fewer blocks at the destination", _case(dst_blocks=2, pairs=[[3, 1], [0, 0]])
    yield "more blocks at the destination", _case(dst_blocks=9, pairs=[[3, 8], [0, 4]])
    yield "within one cache", _case(same_cache=True, pairs=[[3, 1], [0, 2]])
    for layout, name in enumerate(LAYOUTS):
        moved = {"src_layout": layout, "pairs": [[1, 2], [3, 0]]}
        yield f"{name} to NHD", _case(**moved)
        if layout:
            yield f"{name} on both sides", _case(**moved, dst_layout=layout)
    for dtype in OF_EACH_SIZE:
        odd = {"block_size": 3, "num_kv_heads": 1, "head_size": 5}
        yield f"{dtype}, blocks of odd size", _case(dtype=dtype, **odd, pairs=[[3, 0], [1, 3]])
    yield "others' memory between the rows", _case(src_gap=3, dst_gap=8, pairs=[[1, 2]])
    yield "strided pairs", _case(strided_pairs=True, pairs=[[1, 2], [3, 0]])
    yield "pairs beside the caches", _case(pairs_on_cpu=False, pairs=[[1, 2], [3, 0]])
    yield "from the host", _case(src_on_cpu=True, pairs=[[1, 2], [3, 0]])
    yield "to the host", _case(dst_on_cpu=True, pairs=[[1, 2], [3, 0]])
    wide = {"block_size": 16, "num_kv_heads": 4, "head_size": 128}
    yield "more words than a kernel tile (K19)", _case(**wide, pairs=[[1, 2], [3, 0]])
    odd = {"block_size": 3, "num_kv_heads": 1, "head_size": 5}
    for dtype in ("float16", "float8_e4m3fn"):
        name = f"blocks 2**31 elements apart, {dtype} (K15)"
        yield name, _case(far=True, dtype=dtype, pairs=[[0, 3], [3, 1]])
        yield f"{name}, of odd size", _case(far=True, dtype=dtype, pairs=[[0, 3], [3, 1]], **odd)
        name = f"within one cache of 2**31 elements, {dtype} (K15)"
        yield name, _case(far=True, dtype=dtype, pairs=[[0, 2], [3, 1]], same_cache=True, **odd)
    for count in (129, 530):
        pairs = [[i, (7 * i + 3) % count] for i in range(count)]
        yield f"{count} pairs", _case(src_blocks=count, dst_blocks=count, pairs=pairs)


def _from_batch(batch: Batch) -> Iterator[Case]:
    """Yield a copy of blocks to the host, as for preempted requests."""
    pairs = moved_blocks(batch)
    blocks = 2 * len(pairs)
    shape = {"block_size": batch.block_size, "num_kv_heads": 1, "head_size": 8}
    yield _case(**shape, src_blocks=blocks, dst_blocks=blocks, dst_on_cpu=True, pairs=pairs)


def _timed(batch: Batch) -> Iterator[Case]:
    """Yield a copy of eight blocks of Llama-3.1-8B to the host."""
    if batch.num_requests == 8:
        pairs = moved_blocks(batch)
        shape = {"block_size": batch.block_size, "num_kv_heads": 8, "head_size": 128}
        blocks = 2 * len(pairs)
        yield _case(**shape, src_blocks=blocks, dst_blocks=blocks, dst_on_cpu=True, pairs=pairs)


def _prepare(case: Case, pattern: int, device: str) -> Call:
    p = case.params
    shape = (max(1, p["block_size"]), max(1, p["num_kv_heads"]), max(1, p["head_size"]))
    src, dst = (
        PagedCache(
            name,
            p[f"{side}_blocks"],
            *shape,
            dtype=p["dtype"],
            layout=p[f"{side}_layout"] % len(LAYOUTS),
            gap=p[f"{side}_gap"],
            on_cpu=p[f"{side}_on_cpu"],
        )
        for name, side in ((SRC, "src"), (DST, "dst"))
    )
    caches = [dst] if p["same_cache"] else [src, dst]
    sources = caches[0].num_blocks
    pairs = pairs_of(case, sources, dst.num_blocks, same_cache=p["same_cache"])
    on_cpu = p["pairs_on_cpu"] or caches[0].on_cpu or dst.on_cpu
    near = caches[:-1] if _is_far(case) else caches
    pieces = [cache.piece(pattern) for cache in near]
    ids = _far_ids(pairs, dst, sources=p["same_cache"]) if _is_far(case) else pairs
    pieces.append(pairs_piece(ids, on_cpu=on_cpu, strided=p["strided_pairs"]))
    arena = Arena(pieces, STALE_PATTERNS[pattern] & 0x7F, device)
    tensors = {cache.name: cache.tensor(arena.tensors[cache.name]) for cache in near}
    before = elements(near, arena)
    if _is_far(case):
        tensors[DST], words = lay_out_far(dst, pattern, device)
        before[DST] = words.numpy()
    else:
        words = dst.words(arena.tensors[DST])
    return Call(
        {SRC: tensors[caches[0].name], DST: tensors[DST], _PAIRS: arena.tensors[PAIRS]},
        arena=arena,
        written=frozenset({DST}),
        facts=BlockFacts(
            pairs=pairs,
            before={SRC: before[caches[0].name], DST: before[DST]},
            words={DST: words},
            far_caches={DST: FarCache(tensors[DST], dst.num_blocks)} if _is_far(case) else {},
        ),
    )


def _is_far(case: Case) -> bool:
    p = case.params
    return bool(p.get("far") and p["dtype"] != "float32" and p["dst_blocks"] > 1)


def _far_ids(pairs: list[list[int]], dst: PagedCache, *, sources: bool) -> list[list[int]]:
    """Return the pairs with far ids of destinations; with `sources`, of sources as well."""
    return [[far_block(s, dst) if sources else s, far_block(t, dst)] for s, t in pairs]


def _has_pairs(case: Case) -> bool:
    return bool(_prepare(case, 0, "cpu").facts.pairs) and not _is_far(case)


def _is_near(case: Case) -> bool:
    return not _is_far(case)


def _smaller(case: Case, side: str, other: str) -> bool:
    """True if the side's cache has blocks, but fewer than the other cache."""
    p = case.params
    if _is_far(case):
        return False
    return bool(not p["same_cache"] and 0 < p[f"{side}_blocks"] < p[f"{other}_blocks"])


def _is_uneven(case: Case) -> bool:
    return bool(max(1, case.params["block_size"]) != max(1, case.params["head_size"]))


def _other_dtype(cache: torch.Tensor) -> torch.Tensor:
    sizes = {1: torch.int8, 2: torch.int16, 4: torch.int32}
    return cache.view(sizes[cache.element_size()])


swap_blocks = Operation(
    name=NAME,
    section="7",
    summary="blocks of one layer copied to another cache, perhaps on another device",
    inputs=Inputs(
        params=_Params,
        problem=_problem,
        has_batch=False,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_from_batch,
        faults={
            "source of another type": wrong_type(SRC),
            "destination of another type": wrong_type(DST),
            "source without keys and values": Fault(SRC, lambda cache: cache[0], applies=_is_near),
            "source of three halves": Fault(
                SRC, lambda cache: torch.cat([cache, cache[:1]]), applies=_is_near
            ),
            "destination with other blocks": Fault(
                DST, lambda cache: cache[..., :-1], applies=_is_near
            ),
            "destination with blocks of another shape": Fault(
                DST, lambda cache: cache.transpose(2, 4), applies=_is_uneven
            ),
            "destination of another dtype": Fault(
                DST, lambda cache: cache.to(torch.int64), applies=_is_near
            ),
            "expanded destination": Fault(
                DST, lambda cache: cache[:1].expand(2, *cache.shape[1:]), applies=_has_pairs
            ),
            "destination of another dtype of this size": Fault(DST, _other_dtype, applies=_is_near),
            **pair_faults(
                _PAIRS,
                (SRC, DST),
                lambda src, dst: (src.shape[1], dst.shape[1]),
                _is_near,
                _has_pairs,
                one_cache=lambda case: bool(case.params["same_cache"]) and _is_near(case),
                smaller_source=lambda case: _smaller(case, "src", "dst"),
                smaller_target=lambda case: _smaller(case, "dst", "src"),
            ),
        },
    ),
    call=FunctionCall(prepare=_prepare, outputs=cache_outputs),
    contract=Contract(
        invariants=cache_violations,
        diagnose=diagnose_blocks,
        may_alias=frozenset({DST}),
        may_sync=lambda case: bool(case.params["dst_on_cpu"]),
    ),
    bench=Bench(cases=_timed, work=block_work),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (swap_blocks,)
