"""Operation of SPEC.md section 7: blocks are copied within the cache of every layer.

Bug classes: those of `swap_blocks`, and a layer that is omitted or gets the shape of another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from attnproof.harness.model.place import Place
from attnproof.harness.operations.kv_cache.block_pairs import (
    GAP,
    LAYOUT,
    OF_EACH_SIZE,
    PAIR,
    PAIRS,
    RUNS,
    SMALL,
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
from attnproof.harness.operations.shared.params import (
    CacheDtype,
    Pairs,
    Params,
)
from attnproof.reference.interface import MetadataError

NAME = "copy_blocks"
_PAIRS = "src_to_dists"


_LayerNumbers = Annotated[list[Annotated[int, Meta(ge=0, le=2**16)]], Meta(max_length=6)]
"""Blocks, block size, heads, head size, layout and gap; missing ones are 0."""


class _Params(Params):
    pairs: Pairs
    """Source and destination block of each copy."""
    layers: Annotated[list[_LayerNumbers], Meta(max_length=64)]
    dtype: CacheDtype
    """Dtype of the caches."""
    repeated: bool
    pairs_on_cpu: bool
    """True if the pairs are on the CPU."""
    strided_pairs: bool
    """True for pairs with gaps between them."""
    far: bool = False
    other_dtype: CacheDtype | None = None
    """Dtype of every second layer, None for `dtype`."""


def _problem(case: Case) -> str:
    elements = 0
    for numbers in case.params["layers"]:
        blocks, *shape, _, gap = [*numbers, *[0] * 6][:6]
        elements += cache_elements(blocks, shape, gap)
    return cache_problem("layers", elements, is_far=_is_far(case))


def _case(
    pairs: list[list[int]],
    layers: list[list[int]],
    dtype: str = "float16",
    *,
    repeated: bool = False,
    pairs_on_cpu: bool = True,
    strided_pairs: bool = False,
    far: bool = False,
    other_dtype: str | None = None,
) -> Case:
    """Return a case; a layer is [blocks, block size, heads, head size, layout, gap].

    `repeated`: the first and the last layer share a cache.
    `far`: half of the blocks of the only layer are more than 2**31 elements behind the others.
    """
    params = {"pairs": pairs, "layers": layers, "dtype": dtype, "repeated": repeated}
    if far:
        params["far"] = True
    if other_dtype is not None:
        params["other_dtype"] = other_dtype
    where = {"pairs_on_cpu": pairs_on_cpu, "strided_pairs": strided_pairs}
    return Case(NAME, None, params | where)


_layer = st.tuples(
    st.integers(0, 9), SMALL, SMALL, SMALL | st.sampled_from((8, 32)), LAYOUT, GAP
).map(list)


def _cases() -> st.SearchStrategy[Case]:
    return st.builds(
        _case,
        st.lists(PAIR, max_size=6),
        st.lists(_layer, max_size=3),
        st.sampled_from(DTYPES),
        repeated=st.booleans(),
        pairs_on_cpu=st.booleans(),
        strided_pairs=st.booleans(),
        other_dtype=st.none() | st.sampled_from(DTYPES),
    )


def _boundaries() -> Iterator[tuple[str, Case]]:
    plain = [4, 2, 2, 4, 0, 0]
    yield "one block", _case([[0, 1]], [plain])
    yield "no pairs", _case([], [plain])
    yield "no layers", _case([[0, 1]], [])
    yield "a block to several places", _case([[2, 0], [2, 1], [2, 3]], [plain])
    for name, pairs in RUNS.items():
        yield name, _case(pairs, [[9, *plain[1:]]])
    yield "layers of different shapes", _case([[0, 1]], [plain, [3, 1, 5, 8, 1, 0]])
    yield "behind an odd size", _case([[0, 1]], [[3, 3, 1, 5, 0, 0], plain], "uint8")
    two = _case([[0, 1]], [plain, plain], other_dtype="float32")
    yield "layers of one shape and two dtypes", two
    yield "layers that share a cache", _case([[0, 1]], [plain, plain], repeated=True)
    pairs = [[3, 1], [2, 0]]
    for layout, name in enumerate(LAYOUTS[1:], 1):
        yield name, _case(pairs, [[4, 2, 3, 4, layout, 0]])
    for dtype in OF_EACH_SIZE:
        yield f"{dtype}, blocks of odd size", _case(pairs, [[4, 3, 1, 5, 0, 0]], dtype)
    yield "others' memory between the rows", _case([[3, 1]], [[4, 2, 2, 4, 0, 3]])
    yield "rows of five elements at multiples of eight", _case([[3, 1]], [[4, 4, 2, 5, 0, 3]])
    yield "strided pairs", _case([[3, 1], [2, 0]], [plain], strided_pairs=True)
    yield "pairs beside the caches", _case([[3, 1], [2, 0]], [plain], pairs_on_cpu=False)
    yield "more words than a kernel tile (K19)", _case([[3, 1]], [[4, 16, 4, 128, 0, 0]])
    for dtype in ("float16", "float8_e4m3fn"):
        name = f"blocks 2**31 elements apart, {dtype} (K15)"
        yield name, _case([[0, 3], [2, 1]], [[4, 2, 2, 8, 0, 0]], dtype, far=True)
        odd = [4, 3, 1, 5, 0, 0]  # offsets beyond 2**31 in elements, even if words are copied
        yield f"{name}, blocks of odd size", _case([[0, 3], [2, 1]], [odd], dtype, far=True)
    for count in (129, 530):
        pairs = [[i, count + i] for i in range(count)]
        yield f"{count} pairs", _case(pairs, [[2 * count, 2, 2, 4, 0, 0]])
    few = [[i, 9 - i] for i in range(5)]
    yield "five pairs in many layers", _case(few, [[10 + i % 3, 2, 1, 4, 0, 0] for i in range(9)])


def _from_batch(batch: Batch) -> Iterator[Case]:
    """Yield a copy of blocks, as for requests that fork."""
    pairs = moved_blocks(batch)
    yield _case(pairs, [[2 * len(pairs), batch.block_size, 1, 8, 0, 0]])


def _timed(batch: Batch) -> Iterator[Case]:
    """Yield a copy of eight blocks of Llama-3.1-8B in two layers."""
    if batch.num_requests == 8:
        pairs = moved_blocks(batch)
        yield _case(pairs, [[2 * len(pairs), batch.block_size, 8, 128, 0, 0]] * 2)


def _place(layer: int) -> Place:
    return Place("kv_cache", child=layer)


def _prepare(case: Case, pattern: int, device: str) -> Call:
    p = case.params
    caches = []
    for index, numbers in enumerate(p["layers"]):
        blocks, block_size, heads, head_size, layout, gap = [*numbers, *[0] * 6][:6]
        shape = (max(1, block_size), max(1, heads), max(1, head_size))
        name, dtype = str(_place(index)), p["dtype"]
        if index % 2:
            dtype = p.get("other_dtype") or dtype
        caches.append(PagedCache(name, blocks, *shape, dtype, layout % len(LAYOUTS), gap))
    blocks = min((cache.num_blocks for cache in caches), default=12)
    pairs = pairs_of(case, blocks, blocks, same_cache=True)
    if _is_far(case):
        return _prepare_far(case, caches[0], pairs, pattern, device)
    pieces = [cache.piece(pattern) for cache in caches]
    on_cpu = p["pairs_on_cpu"] or not caches  # without a layer there is no other device
    pieces.append(pairs_piece(pairs, on_cpu=on_cpu, strided=p["strided_pairs"]))
    arena = Arena(pieces, STALE_PATTERNS[pattern] & 0x7F, device)
    places = {cache.name: _place(index) for index, cache in enumerate(caches)}
    tensors = [cache.tensor(arena.tensors[cache.name]) for cache in caches]
    if p["repeated"]:
        tensors += tensors[:1]
    return Call(
        {"kv_caches": tensors, _PAIRS: arena.tensors[PAIRS]},
        arena=arena,
        written=frozenset(cache.name for cache in caches),
        places=places,
        facts=BlockFacts(
            pairs=pairs,
            before={places[name]: held for name, held in elements(caches, arena).items()},
            words={places[c.name]: c.words(arena.tensors[c.name]) for c in caches},
        ),
    )


def _prepare_far(
    case: Case, cache: PagedCache, pairs: list[list[int]], pattern: int, device: str
) -> Call:
    p = case.params
    memory, words = lay_out_far(cache, pattern, device)
    ids = [[far_block(block, cache) for block in pair] for pair in pairs]
    piece = pairs_piece(ids, on_cpu=p["pairs_on_cpu"], strided=p["strided_pairs"])
    arena = Arena([piece], STALE_PATTERNS[pattern] & 0x7F, device)
    return Call(
        {"kv_caches": [memory] * (1 + p["repeated"]), _PAIRS: arena.tensors[PAIRS]},
        arena=arena,
        facts=BlockFacts(
            pairs=pairs,
            before={_place(0): words.numpy()},
            words={_place(0): words},
            far_caches={_place(0): FarCache(memory, cache.num_blocks)},
        ),
    )


def _is_far(case: Case) -> bool:
    layers = case.params["layers"]
    small = case.params["dtype"] != "float32"
    return bool(case.params.get("far") and small and len(layers) == 1 and layers[0][:1] > [1])


def _has_pairs(case: Case) -> bool:
    call = _prepare(case, 0, "cpu")
    return bool(call.facts.words and call.facts.pairs) and not _is_far(case)


def _has_caches(case: Case) -> bool:
    return bool(case.params["layers"]) and not _is_far(case)


def _first_layer(
    change: Callable[[torch.Tensor], Any],
    error: type[Exception],
    applies: Callable[[Case], bool] = _has_caches,
) -> Fault:
    """Return a fault of the first layer's cache."""
    return Fault(
        "kv_caches",
        lambda caches: [change(caches[0]), *caches[1:]],
        error=error,
        applies=applies,
    )


def _limits(kv_caches: list[torch.Tensor]) -> tuple[int, int]:
    """Return the number of blocks of the smallest layer, for sources and destinations."""
    blocks = min(int(cache.shape[1]) for cache in kv_caches)
    return blocks, blocks


def _layers_differ(case: Case) -> bool:
    """True if some layer has more blocks than another."""
    return len({(numbers or [0])[0] for numbers in case.params["layers"]}) > 1


def _has_heads(case: Case) -> bool:
    """True if something is copied and the first layer has several heads."""
    return _has_pairs(case) and len(_prepare(case, 0, "cpu")["kv_caches"][0][0, 0, 0]) > 1


copy_blocks = Operation(
    name=NAME,
    section="7",
    summary="blocks copied within the cache of every layer",
    inputs=Inputs(
        params=_Params,
        problem=_problem,
        has_batch=False,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_from_batch,
        faults={
            "one cache for the list": Fault(
                "kv_caches", lambda caches: caches[0], error=TypeError, applies=_has_caches
            ),
            "layer of another type": _first_layer(lambda cache: cache.tolist(), TypeError),
            "layer without keys and values": _first_layer(lambda cache: cache[0], MetadataError),
            "layer with expanded heads": _first_layer(
                lambda cache: cache[:, :, :, :1].expand(cache.shape), MetadataError, _has_heads
            ),
            **pair_faults(
                _PAIRS,
                ("kv_caches",),
                _limits,
                _has_caches,
                _has_pairs,
                one_cache=lambda _: True,
                smaller_source=_layers_differ,
                smaller_target=_layers_differ,
            ),
        },
    ),
    call=FunctionCall(prepare=_prepare, outputs=cache_outputs),
    contract=Contract(
        invariants=cache_violations, diagnose=diagnose_blocks, may_alias=frozenset({"[].kv_cache"})
    ),
    bench=Bench(cases=_timed, work=block_work),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (copy_blocks,)
