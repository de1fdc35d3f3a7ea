"""Pairs of cache blocks, invariants of a block copy and malformed pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.memory.arena import Arena, Piece
from attnproof.harness.cases.memory.far_memory import far_cache, fill_near_blocks, near_blocks
from attnproof.harness.cases.memory.paged_cache import LAYOUTS, PagedCache
from attnproof.harness.model.call import Call, Facts, Outputs
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.place import Place
from attnproof.harness.model.timing import Work
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.params import FAR_BYTES, size_problem

SRC, DST, PAIRS = "src_kv_cache", "dst_kv_cache", "pairs"
SMALL = st.integers(1, 5)
PAIR = st.tuples(st.integers(0, 11), st.integers(0, 11)).map(list)
LAYOUT = st.integers(0, len(LAYOUTS) - 1)
GAP = st.sampled_from((0, 0, 1, 8))
OF_EACH_SIZE = ("float8_e4m3fn", "float16", "float32")
"""A dtype of each element size: a copy does not tell those of one size apart."""
_BEYOND = -9
"""Placeholder in a malformed pair for the first block id beyond the cache."""

RUNS = {
    "a run of blocks": [[0, 5], [1, 6], [2, 7], [3, 8]],
    "a run but for its sources inside": [[0, 5], [2, 6], [1, 7], [3, 8]],
    "a run but for its targets inside": [[0, 5], [1, 7], [2, 6], [3, 8]],
    "a run with a source twice": [[0, 5], [1, 6], [1, 7], [3, 8]],
}
"""Pairs of caches of nine blocks; the first and the last pair are those of a run."""
Name = str | Place
"""Name of a cache: a parameter, or the place of one layer's cache."""


class FarCache(NamedTuple):
    """Memory of a cache with a gap of more than 2**31 elements between its two halves of blocks."""

    memory: torch.Tensor
    num_blocks: int


@dataclass(frozen=True, kw_only=True)
class BlockFacts(Facts):
    """Facts of a copy of blocks."""

    pairs: list[list[int]]
    """Source and destination of each copy, counted without the gap of a far cache."""
    before: Mapping[Any, np.ndarray]
    """Elements of each cache before the call, by `Name`."""
    words: Mapping[Any, torch.Tensor]
    """Elements of each cache that is written, as integers, by `Name`."""
    far_caches: Mapping[Any, FarCache] = field(default_factory=dict)
    """Far caches by `Name`."""


def cache_elements(blocks: int, shape: Sequence[int], gap: int) -> int:
    """Return the number of elements of a cache's memory; its shape's 0 count as 1."""
    block_size, heads, head_size = shape
    return 2 * blocks * max(1, block_size) * max(1, heads) * (max(1, head_size) + gap)


def cache_problem(name: str, elements: int, *, is_far: bool) -> str:
    """Return why the caches that `name` describes are too large, "" if they are not."""
    if is_far and 4 * elements > FAR_BYTES:
        return f"{name}: the blocks are too large for a far cache"
    return size_problem(name, elements)


def moved_blocks(batch: Batch) -> list[list[int]]:
    """Return pairs that copy at most eight of the batch's blocks to unused block ids."""
    live = min(8, sum(map(len, batch.blocks)))
    return [[block, live + block] for block in range(live)]


def pairs_of(case: Case, sources: int, targets: int, *, same_cache: bool) -> list[list[int]]:
    """Return the case's pairs without those that the caches or earlier pairs do not allow."""
    kept: list[list[int]] = []
    read, written = set(), set()
    for pair in case.params["pairs"]:
        if len(pair) < 2 or not sources or not targets:
            continue
        source, target = pair[0] % sources, pair[1] % targets
        clash = same_cache and (target in read or source in written or source == target)
        if target not in written and not clash:
            kept.append([source, target])
            read.add(source)
            written.add(target)
    return kept


def pairs_piece(pairs: list[list[int]], *, on_cpu: bool, strided: bool) -> Piece:
    """Return the memory layout of the pairs; strided pairs have stale words between them."""
    values = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return Piece(PAIRS, values, on_cpu, (5, 2) if strided else (2, 1))


def cache_outputs(call: Call, result: Any) -> Outputs:
    """Return the result, and the elements of the caches that are written, as integers."""
    words: Outputs = dict(call.facts.words)
    for name, cache in call.facts.far_caches.items():
        words[name] = near_blocks(cache.memory, cache.num_blocks).view(words[name].dtype)
    return {"result": result, **words}


def block_work(call: Call, _result: Any) -> Work:
    """Return the bytes of the blocks that are read, and of those that are written."""
    source = next(iter(call.args.values()))
    caches = source if isinstance(source, list) else [source]
    block = sum(cache.nbytes // max(1, cache.shape[1]) for cache in caches)
    return Work(bytes=2 * len(call.facts.pairs) * block)


def lay_out_far(cache: PagedCache, pattern: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the memory of a far cache, and its elements as integers."""
    memory = far_cache(cache, "cpu" if cache.on_cpu else device)
    words = torch.from_numpy(cache.values(pattern))
    fill_near_blocks(memory, words)
    return memory, words


def elements(caches: list[PagedCache], arena: Arena) -> dict[str, np.ndarray]:
    """Return copies of the caches' elements by name."""
    return {c.name: c.words(arena.tensors[c.name]).cpu().numpy().copy() for c in caches}


def cache_violations(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check the blocks that a pair names, and that all other blocks are unchanged."""
    before, pairs = call.facts.before, call.facts.pairs
    for name, written in call.facts.words.items():
        source = before[SRC] if name == DST else before[name]
        now, old = outputs[name].cpu().numpy(), before[name]
        targets = [target for _, target in pairs]
        if (now[:, targets] != source[:, [source for source, _ in pairs]]).any():
            yield Violation(name, "a destination does not hold its source")
        others = np.setdiff1d(np.arange(written.shape[1]), targets)
        if (now[:, others] != old[:, others]).any():
            yield Violation(name, "a block changed that is no destination")
    if outputs["result"] is not None:
        yield Violation("result", "returns something")


def diagnose_blocks(call: Call, place: Place, expected: Any, got: Any) -> str:
    """Name the wrong blocks or halves, and the origin of their content."""
    name = place.field if place.child is None else place
    if name not in call.facts.words or not isinstance(got, torch.Tensor):
        return ""
    right, wrong = expected.cpu().numpy(), got.cpu().numpy()
    before, pairs = call.facts.before, call.facts.pairs
    targets = {target for _, target in pairs}
    halves, blocks = (sorted(set(places.tolist())) for places in (right != wrong).nonzero()[:2])
    if not blocks:
        return ""
    source = before[SRC] if name == DST else before[name]
    same = ((source == wrong[:, block, None]).all((0, 2, 3, 4)) for block in blocks)
    copied = np.array([of_blocks.any() for of_blocks in same])
    # What is written elsewhere leaves its block unchanged, and what is read there is in no block.
    unchanged = (wrong[:, blocks] == before[name][:, blocks]).all((0, 2, 3, 4))
    far = _reached_far(call, name, right.shape[1])
    if set(blocks) == far and (unchanged | ~copied).all():
        return "32-bit overflow"
    if set(blocks) - targets:
        return "a block changed that is no destination"
    if len(halves) == 1 and (wrong[:, blocks] == before[name][:, blocks])[halves].all():
        return f"only the {('values', 'keys')[halves[0]]} copied"
    if unchanged.all():
        return "block not copied"
    if copied.all():
        return "another block's content"
    changed = (wrong != right)[:, blocks]
    stays = (wrong == before[name])[:, blocks]
    return "part of a block copied" if stays[changed].all() else "wrong elements within a block"


def _reached_far(call: Call, name: Name, num_blocks: int) -> set[int]:
    """Return the destinations whose copy reads or writes beyond 2**31 elements."""
    if name not in call.facts.far_caches:
        return set()
    return {pair[1] for pair in call.facts.pairs if max(pair) >= num_blocks // 2}


Limits = Callable[..., tuple[int, int]]
"""Caches to the numbers of blocks that sources and destinations may use."""


def _int64(pairs: list[list[int]]) -> torch.Tensor:
    return torch.tensor(pairs, dtype=torch.int64)


def _with_pair(
    limits: Limits, source: int, target: int, pairs: torch.Tensor, *caches: Any
) -> torch.Tensor:
    """Return the pairs and one more; _BEYOND stands for the first id beyond its cache."""
    ends = limits(*caches)
    ids = [e if b == _BEYOND else b for b, e in zip((source, target), ends, strict=True)]
    return _int64([*pairs.tolist(), ids])


def _written_source(pairs: torch.Tensor) -> torch.Tensor:
    source, target = pairs[0].tolist()
    return _int64([*pairs.tolist(), [target, source]])


def _twice(pairs: torch.Tensor) -> torch.Tensor:
    return _int64([*pairs.tolist(), pairs[0].tolist()])


def _of_two(limits: Limits, pairs: torch.Tensor, *caches: Any) -> torch.Tensor:
    """Return the pairs and one more, with another source for the first destination."""
    listed = pairs.tolist()
    source, target = listed[0]
    taken = {source, *(target for _, target in listed)}
    others = [block for block in range(limits(*caches)[0]) if block not in taken]
    return _int64([*listed, [(others or [source])[0], target]])


def pair_faults(
    parameter: str,
    caches: tuple[str, ...],
    limits: Limits,
    has_caches: Callable[[Case], bool],
    has_pairs: Callable[[Case], bool],
    *,
    one_cache: Callable[[Case], bool],
    smaller_source: Callable[[Case], bool],
    smaller_target: Callable[[Case], bool],
) -> dict[str, Fault]:
    """Return the faults of the pairs, for both operations.

    `caches`: parameters that `limits` gets. `one_cache`: True if a case copies within one
    cache. `smaller_source`, `smaller_target`: True if another cache has more blocks than that
    of the sources, or of the destinations.
    """

    def with_pair(source: int, target: int, applies: Callable[[Case], bool]) -> Fault:
        change = partial(_with_pair, limits, source, target)
        return Fault(parameter, change, applies=applies, reads=caches)

    return {
        "source beyond the cache": with_pair(_BEYOND, 0, has_caches),
        "destination beyond the cache": with_pair(0, _BEYOND, has_caches),
        "source beyond the smaller cache": with_pair(_BEYOND, 0, smaller_source),
        "destination beyond the smaller cache": with_pair(0, _BEYOND, smaller_target),
        "destination that is a source": Fault(
            parameter,
            _written_source,
            applies=lambda case: one_cache(case) and has_pairs(case),
        ),
        "negative source": with_pair(-1, 0, has_caches),
        "negative destination": with_pair(0, -1, has_caches),
        "destination twice": Fault(parameter, _twice, applies=has_pairs),
        "destination of two sources": Fault(
            parameter, partial(_of_two, limits), applies=has_pairs, reads=caches
        ),
        "flat pairs": Fault(
            parameter, lambda pairs: _int64(pairs.tolist()).ravel(), applies=has_pairs
        ),
        "pairs of three": Fault(parameter, lambda _: torch.zeros((1, 3), dtype=torch.int64)),
        "int32 pairs": Fault(parameter, lambda pairs: pairs.int()),
        "list of pairs": Fault(parameter, lambda pairs: pairs.tolist(), error=TypeError),
    }
