"""Operations of SPEC.md section 7 that move blocks of the paged cache.

Bug classes: keys moved without values, part of a block, a stride assumed, source and
destination exchanged, ids taken for slots. 32-bit products (K15): see `tests/optimized`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from hypothesis import strategies as st

from harness.cases.arena import STALE_PATTERNS, Arena
from harness.cases.paged_cache import DTYPES, LAYOUTS, PagedCache
from harness.model.case import Batch, Case
from harness.model.operation import Call, Fault, Operation
from harness.operations.block_pairs import (
    DST,
    PAIRS,
    SRC,
    cache_breaches,
    cache_outputs,
    diagnose_blocks,
    elements,
    pair_faults,
    pairs_of,
    pairs_piece,
)
from harness.operations.common import wrong_type
from reference.interface import MetadataError

SWAP, COPY = "swap_blocks", "copy_blocks"
_SHAPES = ("block_size", "num_kv_heads", "head_size")

_small = st.integers(1, 5)
_pair = st.tuples(st.integers(0, 11), st.integers(0, 11)).map(list)
_layouts = st.integers(0, len(LAYOUTS) - 1)
_gaps = st.sampled_from((0, 0, 1, 8))


def _call_of(case: Case) -> Call:
    prepare = {SWAP: _prepare_swap, COPY: _prepare_copy}[case.operation]
    return prepare(case, 0, "cpu")


def _has_pairs(case: Case) -> bool:
    return bool(_has_caches(case) and _call_of(case).facts["pairs"])


def _has_caches(case: Case) -> bool:
    return bool(_call_of(case).facts["words"])


# swap_blocks


def _swap_case(**params: Any) -> Case:
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
    return Case(SWAP, None, defaults | params)


@st.composite
def _swap_cases(draw: st.DrawFn) -> Case:
    layout = draw(_layouts)
    return _swap_case(
        src_blocks=draw(st.integers(0, 9)),
        dst_blocks=draw(st.integers(0, 9)),
        **{name: draw(_small) for name in _SHAPES[:2]},
        head_size=draw(_small | st.sampled_from((8, 32))),
        dtype=draw(st.sampled_from(DTYPES)),
        src_layout=layout,
        dst_layout=draw(st.just(layout) | _layouts),
        src_gap=draw(_gaps),
        dst_gap=draw(_gaps),
        src_on_cpu=draw(st.booleans()),
        dst_on_cpu=draw(st.booleans()),
        pairs_on_cpu=draw(st.booleans()),
        strided_pairs=draw(st.booleans()),
        same_cache=draw(st.sampled_from((False, False, False, True))),
        pairs=draw(st.lists(_pair, max_size=6)),
    )


def _swap_boundaries() -> Iterator[tuple[str, Case]]:
    yield "one block", _swap_case()
    yield "no pairs", _swap_case(pairs=[])
    yield "caches without blocks", _swap_case(src_blocks=0, dst_blocks=0, pairs=[])
    yield "first and last block", _swap_case(pairs=[[0, 3], [3, 0]])
    yield "a block to several places", _swap_case(pairs=[[2, 0], [2, 1], [2, 3]])
    yield "fewer blocks at the destination", _swap_case(dst_blocks=2, pairs=[[3, 1], [0, 0]])
    yield "more blocks at the destination", _swap_case(dst_blocks=9, pairs=[[3, 8], [0, 4]])
    yield "within one cache", _swap_case(same_cache=True, pairs=[[3, 1], [0, 2]])
    for layout, name in enumerate(LAYOUTS):
        yield f"{name} to NHD", _swap_case(src_layout=layout, pairs=[[1, 2], [3, 0]])
        yield (
            f"{name} on both sides",
            _swap_case(src_layout=layout, dst_layout=layout, pairs=[[1, 2], [3, 0]]),
        )
    for dtype in DTYPES:
        odd = {"block_size": 3, "num_kv_heads": 1, "head_size": 5}
        yield f"{dtype}, blocks of odd size", _swap_case(dtype=dtype, **odd, pairs=[[3, 0], [1, 3]])
    yield "others' memory between the rows", _swap_case(src_gap=3, dst_gap=8, pairs=[[1, 2]])
    yield "strided pairs", _swap_case(strided_pairs=True, pairs=[[1, 2], [3, 0]])
    yield "pairs beside the caches", _swap_case(pairs_on_cpu=False, pairs=[[1, 2], [3, 0]])
    yield "from the host", _swap_case(src_on_cpu=True, pairs=[[1, 2], [3, 0]])
    yield "to the host", _swap_case(dst_on_cpu=True, pairs=[[1, 2], [3, 0]])
    wide = {"block_size": 16, "num_kv_heads": 4, "head_size": 128}
    yield "more words than a kernel tile (K19)", _swap_case(**wide, pairs=[[1, 2], [3, 0]])
    yield (
        "many pairs",
        _swap_case(src_blocks=40, dst_blocks=40, pairs=[[i, (7 * i + 3) % 40] for i in range(40)]),
    )


def _moved(batch: Batch) -> list[list[int]]:
    """The batch's blocks, as far as a small cache has room, to places of their own."""
    live = min(8, sum(map(len, batch.blocks)))
    return [[block, live + block] for block in range(live)]


def _swap_steps(batch: Batch) -> Iterator[Case]:
    """Requests are preempted: their blocks go to the host."""
    pairs = _moved(batch)
    blocks = 2 * len(pairs)
    shape = {"block_size": batch.block_size, "num_kv_heads": 1, "head_size": 8}
    yield _swap_case(**shape, src_blocks=blocks, dst_blocks=blocks, dst_on_cpu=True, pairs=pairs)


def _prepare_swap(case: Case, pattern: int, device: str) -> Call:
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
    pieces = [cache.piece(pattern) for cache in caches]
    pieces.append(pairs_piece(pairs, on_cpu=on_cpu, strided=p["strided_pairs"]))
    arena = Arena(pieces, STALE_PATTERNS[pattern] & 0x7F, device)
    tensors = [cache.tensor(arena.tensors[cache.name]) for cache in (caches[0], dst)]
    before = elements(caches, arena)
    return Call(
        [*tensors, arena.tensors[PAIRS]],
        arena=arena,
        written=frozenset({DST}),
        facts={
            "pairs": pairs,
            "before": {SRC: before[caches[0].name], DST: before[DST]},
            "words": {DST: dst.words(arena.tensors[DST])},
        },
    )


def _cache_fault(
    position: int,
    field: str,
    change: Callable[[torch.Tensor], Any],
    applies: Callable[[Case], bool] = lambda _: True,
) -> Fault:
    def spoil(call: Call) -> None:
        call.args[position] = change(call.args[position])

    return Fault(field=field, spoil=spoil, error=MetadataError, applies=applies)


def _smaller(case: Case, side: str, other: str) -> bool:
    """Whether that side's cache has fewer blocks than the other's, and some."""
    p = case.params
    return bool(not p["same_cache"] and 0 < p[f"{side}_blocks"] < p[f"{other}_blocks"])


def _is_uneven(case: Case) -> bool:
    return bool(max(1, case.params["block_size"]) != max(1, case.params["head_size"]))


def _other_dtype(cache: torch.Tensor) -> torch.Tensor:
    sizes = {1: torch.int8, 2: torch.int16, 4: torch.int32}
    return cache.view(sizes[cache.element_size()])


swap_blocks = Operation(
    name=SWAP,
    section="7",
    summary="blocks of one layer copied to another cache, perhaps on another device",
    cases=_swap_cases,
    boundaries=_swap_boundaries,
    from_batch=_swap_steps,
    prepare=_prepare_swap,
    outputs=cache_outputs,
    invariants=cache_breaches,
    diagnose=diagnose_blocks,
    shares=frozenset({DST}),
    kernels=True,
    faults={
        "source of another type": wrong_type(0, SRC),
        "destination of another type": wrong_type(1, DST),
        "source without keys and values": _cache_fault(0, SRC, lambda cache: cache[0]),
        "source of three halves": _cache_fault(0, SRC, lambda cache: torch.cat([cache, cache[:1]])),
        "destination with other blocks": _cache_fault(1, DST, lambda cache: cache[..., :-1]),
        "destination with blocks of another shape": _cache_fault(
            1, DST, lambda cache: cache.transpose(2, 4), _is_uneven
        ),
        "destination of another dtype": _cache_fault(1, DST, lambda cache: cache.to(torch.int64)),
        "expanded destination": _cache_fault(
            1, DST, lambda cache: cache[:1].expand(2, *cache.shape[1:]), _has_pairs
        ),
        "destination of another dtype of this size": _cache_fault(1, DST, _other_dtype),
        **pair_faults(
            "src_to_dst",
            _has_caches,
            _has_pairs,
            one_cache=lambda case: bool(case.params["same_cache"]),
            smaller_source=lambda case: _smaller(case, "src", "dst"),
            smaller_target=lambda case: _smaller(case, "dst", "src"),
        ),
    },
)

# copy_blocks: a layer is [blocks, block size, heads, head size, layout, gap].


def _copy_case(
    pairs: list[list[int]],
    layers: list[list[int]],
    dtype: str = "float16",
    *,
    repeated: bool = False,
    pairs_on_cpu: bool = True,
    strided_pairs: bool = False,
) -> Case:
    """`repeated`: the first layer's cache is also the last one's, as layers can share."""
    params = {"pairs": pairs, "layers": layers, "dtype": dtype, "repeated": repeated}
    where = {"pairs_on_cpu": pairs_on_cpu, "strided_pairs": strided_pairs}
    return Case(COPY, None, params | where)


_layer = st.tuples(
    st.integers(0, 9), _small, _small, _small | st.sampled_from((8, 32)), _layouts, _gaps
).map(list)


def _copy_cases() -> st.SearchStrategy[Case]:
    return st.builds(
        _copy_case,
        st.lists(_pair, max_size=6),
        st.lists(_layer, max_size=3),
        st.sampled_from(DTYPES),
        repeated=st.booleans(),
        pairs_on_cpu=st.booleans(),
        strided_pairs=st.booleans(),
    )


def _copy_boundaries() -> Iterator[tuple[str, Case]]:
    plain = [4, 2, 2, 4, 0, 0]
    yield "one block", _copy_case([[0, 1]], [plain])
    yield "no pairs", _copy_case([], [plain])
    yield "no layers", _copy_case([[0, 1]], [])
    yield "every layer", _copy_case([[0, 1]], [plain] * 3)
    yield "a block to several places", _copy_case([[2, 0], [2, 1], [2, 3]], [plain])
    yield "first and last block", _copy_case([[0, 3]], [plain])
    yield "layers of different shapes", _copy_case([[0, 1]], [plain, [3, 1, 5, 8, 1, 0]])
    yield "behind an odd size", _copy_case([[0, 1]], [[3, 3, 1, 5, 0, 0], plain], "uint8")
    yield "layers that share a cache", _copy_case([[0, 1]], [plain, plain], repeated=True)
    for layout, name in enumerate(LAYOUTS):
        yield name, _copy_case([[3, 1], [2, 0]], [[4, 2, 3, 4, layout, 0]])
    for dtype in DTYPES:
        yield (
            f"{dtype}, blocks of odd size",
            _copy_case([[3, 1], [2, 0]], [[4, 3, 1, 5, 0, 0]], dtype),
        )
    yield "others' memory between the rows", _copy_case([[3, 1]], [[4, 2, 2, 4, 0, 3]])
    yield "strided pairs", _copy_case([[3, 1], [2, 0]], [plain], strided_pairs=True)
    yield "pairs beside the caches", _copy_case([[3, 1], [2, 0]], [plain], pairs_on_cpu=False)
    yield "more words than a kernel tile (K19)", _copy_case([[3, 1]], [[4, 16, 4, 128, 0, 0]])
    yield "many pairs", _copy_case([[i, 20 + i] for i in range(20)], [[40, 2, 2, 4, 0, 0]])


def _copy_steps(batch: Batch) -> Iterator[Case]:
    """Requests fork: blocks that are written are copied first."""
    pairs = _moved(batch)
    yield _copy_case(pairs, [[2 * len(pairs), batch.block_size, 1, 8, 0, 0]])


def _prepare_copy(case: Case, pattern: int, device: str) -> Call:
    p = case.params
    caches = []
    for index, numbers in enumerate(p["layers"]):
        blocks, block_size, heads, head_size, layout, gap = [*numbers, *[0] * 6][:6]
        shape = (max(1, block_size), max(1, heads), max(1, head_size))
        name = f"[{index}].kv_cache"
        caches.append(PagedCache(name, blocks, *shape, p["dtype"], layout % len(LAYOUTS), gap))
    blocks = min((cache.num_blocks for cache in caches), default=12)
    pairs = pairs_of(case, blocks, blocks, same_cache=True)
    pieces = [cache.piece(pattern) for cache in caches]
    pieces.append(pairs_piece(pairs, on_cpu=p["pairs_on_cpu"], strided=p["strided_pairs"]))
    arena = Arena(pieces, STALE_PATTERNS[pattern] & 0x7F, device)
    tensors = [cache.tensor(arena.tensors[cache.name]) for cache in caches]
    if p["repeated"]:
        tensors += tensors[:1]
    return Call(
        [tensors, arena.tensors[PAIRS]],
        arena=arena,
        written=frozenset(cache.name for cache in caches),
        facts={
            "pairs": pairs,
            "before": elements(caches, arena),
            "words": {cache.name: cache.words(arena.tensors[cache.name]) for cache in caches},
        },
    )


def _first_layer(
    change: Callable[[torch.Tensor], Any],
    error: type[Exception],
    applies: Callable[[Case], bool] = _has_caches,
) -> Fault:
    def spoil(call: Call) -> None:
        call.args[0] = [change(call.args[0][0]), *call.args[0][1:]]

    return Fault(field="kv_caches", spoil=spoil, error=error, applies=applies)


def _layers_differ(case: Case) -> bool:
    """Whether some layer has more blocks than another."""
    return len({(numbers or [0])[0] for numbers in case.params["layers"]}) > 1


def _has_heads(case: Case) -> bool:
    """Whether something is copied and the first layer has several heads."""
    return _has_pairs(case) and len(_call_of(case).args[0][0][0, 0, 0]) > 1


copy_blocks = Operation(
    name=COPY,
    section="7",
    summary="blocks copied within the cache of every layer",
    cases=_copy_cases,
    boundaries=_copy_boundaries,
    from_batch=_copy_steps,
    prepare=_prepare_copy,
    outputs=cache_outputs,
    invariants=cache_breaches,
    diagnose=diagnose_blocks,
    shares=frozenset({"[].kv_cache"}),
    kernels=True,
    faults={
        "one cache for the list": Fault(
            field="kv_caches",
            spoil=lambda call: call.args.__setitem__(0, call.args[0][0]),
            error=TypeError,
            applies=_has_caches,
        ),
        "layer of another type": _first_layer(lambda cache: cache.tolist(), TypeError),
        "layer without keys and values": _first_layer(lambda cache: cache[0], MetadataError),
        "layer with expanded heads": _first_layer(
            lambda cache: cache[:, :, :, :1].expand(cache.shape), MetadataError, _has_heads
        ),
        **pair_faults(
            "src_to_dists",
            _has_caches,
            _has_pairs,
            one_cache=lambda _: True,
            smaller_source=_layers_differ,
            smaller_target=_layers_differ,
        ),
    },
)

OPERATIONS = (swap_blocks, copy_blocks)
