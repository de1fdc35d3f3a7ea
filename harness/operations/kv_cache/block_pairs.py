"""What the operations on cache blocks share: pairs, what must hold after them, bad pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.memory.arena import Arena, Piece
from attnproof.harness.cases.memory.far_memory import far_cache, fill_near_blocks, near_blocks
from attnproof.harness.cases.memory.paged_cache import LAYOUTS, PagedCache
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.operation import Call, Fault, Outputs, Violation
from attnproof.reference.interface import MetadataError

SRC, DST, PAIRS = "src_kv_cache", "dst_kv_cache", "pairs"
SMALL = st.integers(1, 5)
PAIR = st.tuples(st.integers(0, 11), st.integers(0, 11)).map(list)
LAYOUT = st.integers(0, len(LAYOUTS) - 1)
GAP = st.sampled_from((0, 0, 1, 8))


def moved_blocks(batch: Batch) -> list[list[int]]:
    """The batch's blocks, as far as a small cache has room, to places of their own."""
    live = min(8, sum(map(len, batch.blocks)))
    return [[block, live + block] for block in range(live)]


def pairs_of(case: Case, sources: int, targets: int, *, same_cache: bool) -> list[list[int]]:
    """The case's pairs, those left out that the caches or other pairs do not allow."""
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
    """The pairs as they are laid out; strided ones have stale words between them."""
    values = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return Piece(PAIRS, values, on_cpu, (5, 2) if strided else (2, 1))


def cache_outputs(call: Call, result: Any) -> Outputs:
    """What is returned, and the integers of the caches that are written."""
    words: dict[str, torch.Tensor] = dict(call.facts["words"])
    for name, (memory, num_blocks) in call.facts.get("far", {}).items():
        words[name] = near_blocks(memory, num_blocks).view(words[name].dtype)
    return {"result": result, **words}


def lay_out_far(cache: PagedCache, pattern: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The cache with half of its blocks more than 2**31 elements behind the others; its words."""
    memory = far_cache(cache, "cpu" if cache.on_cpu else device)
    words = torch.from_numpy(cache.values(pattern))
    fill_near_blocks(memory, words)
    return memory, words


def elements(caches: list[PagedCache], arena: Arena) -> dict[str, np.ndarray]:
    """Copies of what the caches hold now, by name."""
    return {c.name: c.words(arena.tensors[c.name]).cpu().numpy().copy() for c in caches}


def cache_breaches(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Every block that a pair names, and every block that none does, by numpy."""
    before, pairs = call.facts["before"], call.facts["pairs"]
    for name, written in call.facts["words"].items():
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


def diagnose_blocks(call: Call, field: str, expected: Any, got: Any) -> str:
    """Which blocks or halves are wrong, and whose content they have."""
    if field not in call.facts["words"] or not isinstance(got, torch.Tensor):
        return ""
    right, wrong = expected.cpu().numpy(), got.cpu().numpy()
    before, pairs = call.facts["before"], call.facts["pairs"]
    targets = {target for _, target in pairs}
    halves, blocks = (sorted(set(places.tolist())) for places in (right != wrong).nonzero()[:2])
    if not blocks:
        return ""
    if set(blocks) <= _reached_far(call, field, right.shape[1]):
        return "32-bit overflow"
    if set(blocks) - targets:
        return "a block changed that is no destination"
    if len(halves) == 1 and (wrong[:, blocks] == before[field][:, blocks])[halves].all():
        return f"only the {('values', 'keys')[halves[0]]} copied"
    if (wrong[:, blocks] == before[field][:, blocks]).all():
        return "block not copied"
    source = before[SRC] if field == DST else before[field]
    if all((source == wrong[:, block, None]).all((0, 2, 3, 4)).any() for block in blocks):
        return "another block's content"
    changed = (wrong != right)[:, blocks]
    stays = (wrong == before[field])[:, blocks]
    return "part of a block copied" if stays[changed].all() else "wrong elements within a block"


def _reached_far(call: Call, field: str, num_blocks: int) -> set[int]:
    """Destinations whose copy reads or writes beyond 2**31 elements."""
    if field not in call.facts.get("far", {}):
        return set()
    return {pair[1] for pair in call.facts["pairs"] if max(pair) >= num_blocks // 2}


def replace_pairs(make: Callable[[Call], Any]) -> Callable[[Call], None]:
    """Spoils the last argument."""

    def spoil(call: Call) -> None:
        call.args[-1] = make(call)

    return spoil


def _with_pair(*pair: int) -> Callable[[Call], None]:
    """One more pair behind the good ones; -9 stands for the first id beyond its cache."""

    def make(call: Call) -> torch.Tensor:
        beyond = [_num_blocks(call, side) for side in (SRC, DST)]
        made = [end if block == -9 else block for block, end in zip(pair, beyond, strict=True)]
        return torch.tensor([*call.facts["pairs"], made], dtype=torch.int64)

    return replace_pairs(make)


def _num_blocks(call: Call, side: str) -> int:
    """Blocks of the cache of that side, of the smallest layer where layers have none."""
    before = call.facts["before"]
    caches = [before[side]] if side in before else before.values()
    return min(int(cache.shape[1]) for cache in caches)


def _written_source(call: Call) -> torch.Tensor:
    pairs = call.facts["pairs"]
    return torch.tensor([*pairs, [pairs[0][1], pairs[0][0]]], dtype=torch.int64)


def _twice(call: Call) -> torch.Tensor:
    pairs = call.facts["pairs"]
    return torch.tensor([*pairs, pairs[0]], dtype=torch.int64)


def _of_two(call: Call) -> torch.Tensor:
    pairs = call.facts["pairs"]
    source, target = pairs[0]
    taken = {source, *(target for _, target in pairs)}
    others = [block for block in range(_num_blocks(call, SRC)) if block not in taken]
    return torch.tensor([*pairs, [(others or [source])[0], target]], dtype=torch.int64)


def pair_faults(
    field: str,
    has_caches: Callable[[Case], bool],
    has_pairs: Callable[[Case], bool],
    *,
    one_cache: Callable[[Case], bool],
    smaller_source: Callable[[Case], bool],
    smaller_target: Callable[[Case], bool],
) -> dict[str, Fault]:
    """Ways to spoil the pairs, which are the last argument, for both operations.

    `one_cache`: whether a case copies within one cache; `smaller_source` and
    `smaller_target`: whether there is a cache, not that side's, that has more blocks.
    """

    def fault(spoil: Callable[[Call], None], **others: Any) -> Fault:
        return Fault(field=field, spoil=spoil, **{"error": MetadataError} | others)

    flat = replace_pairs(lambda call: torch.tensor(call.facts["pairs"], dtype=torch.int64).ravel())
    three = replace_pairs(lambda _: torch.zeros((1, 3), dtype=torch.int64))
    narrow = replace_pairs(lambda call: call.args[-1].int())
    listed = replace_pairs(lambda call: call.args[-1].tolist())
    return {
        "source beyond the cache": fault(_with_pair(-9, 0), applies=has_caches),
        "destination beyond the cache": fault(_with_pair(0, -9), applies=has_caches),
        "source beyond the smaller cache": fault(_with_pair(-9, 0), applies=smaller_source),
        "destination beyond the smaller cache": fault(_with_pair(0, -9), applies=smaller_target),
        "destination that is a source": fault(
            replace_pairs(_written_source),
            applies=lambda case: one_cache(case) and has_pairs(case),
        ),
        "negative source": fault(_with_pair(-1, 0), applies=has_caches),
        "negative destination": fault(_with_pair(0, -1), applies=has_caches),
        "destination twice": fault(replace_pairs(_twice), applies=has_pairs),
        "destination of two sources": fault(replace_pairs(_of_two), applies=has_pairs),
        "flat pairs": fault(flat, applies=has_pairs),
        "pairs of three": fault(three),
        "int32 pairs": fault(narrow),
        "list of pairs": fault(listed, error=TypeError),
    }
