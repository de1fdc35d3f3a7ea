"""Named cases of the manager of a KV cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attnproof.harness.model.case import Batch, Case
from attnproof.harness.operations.kv_manager.steps import NAME, groups_of
from attnproof.harness.operations.shared.sequence import Step, step_pairs

_SIZES: dict[str, Any] = {
    "num_blocks": 17,
    "block_size": 4,
    "groups": groups_of([0]),
    "max_model_len": 32,
    "caching": True,
    "hash_lookahead": 0,
}


def _case(*steps: Step, **sizes: Any) -> Case:
    return Case(NAME, None, _SIZES | sizes | {"steps": list(steps)})


def _add(tokens: int, shared: int = 0, like: int = 1, **options: bool) -> Step:
    """Return the step that adds a request of `tokens` tokens."""
    options = {"rejoins": False, **options}
    prefix = {"like": like if shared or options["rejoins"] else 0, "shared": shared}
    return {"do": "add", "tokens": tokens - 1, **prefix, **options}


def _schedule(
    which: int, tokens: int, lookahead: int = 0, sampled: int = 0, **numbers: int
) -> Step:
    """Return a step of up to `tokens` tokens of a request; `numbers` are those of `Schedule`."""
    numbers |= {"chunk": tokens - 1, "lookahead": lookahead, "sampled": sampled}
    return {"do": "schedule", "which": which, **numbers}


def _finish(which: int) -> Step:
    return {"do": "finish", "which": which}


def _preempt(which: int) -> Step:
    return {"do": "preempt", "which": which}


_Cases = list[tuple[str, tuple[Step, ...], dict[str, Any]]]
"""Name, steps, and sizes that are not the usual ones."""
_RESET: Step = {"do": "reset"}
_PROMPT = (_add(13), _schedule(0, 32))
_KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "window": {"groups": groups_of([6])},
    "draft": {"groups": groups_of([0], 0)},
    "full and window": {"groups": groups_of([0, 6])},
    "full and its draft": {"groups": groups_of([0, 0], 1)},
    "lookahead hashes": {"groups": groups_of([0, 6], 1), "hash_lookahead": 1},
    "lookahead hashes of two tokens": {"groups": groups_of([0], 0), "hash_lookahead": 2},
    "full and states": {"groups": groups_of([0, "mamba"])},
    "full and chunked local": {"groups": groups_of([0, "chunked"])},
    "blocks of two sizes": {
        "groups": [*groups_of([0], 0), *groups_of([3]), *groups_of([6], factor=2)]
    },
    "states": {"groups": groups_of(["mamba"])},
    "window of a draft": {"groups": groups_of([6], 0)},
}
"""Groups of a cache, and how many tokens their hashes cover."""


def boundaries() -> Iterator[tuple[str, Case]]:
    """Yield named cases, short ones first: a mistake is shown by the first that fails."""
    yield "one group lacks what another has (#46453)", _lacking()
    yield "another token behind a block of a draft", _followed()
    yield "another token behind a block, lookahead hashes", _followed(hash_lookahead=1)
    for name, steps, sizes in _single():
        yield name, _case(*steps, **sizes)
    for kinds, cases in (
        (("window", "full and its draft", "states"), _unusual_steps()),
        (("full", "window", "full and its draft", "lookahead hashes of two tokens"), _drafts()),
        (("window", "states", "window of a draft"), _retained()),
        ([*_KINDS][:10], _usual_steps()),
    ):
        for kind in kinds:
            for name, steps, sizes in cases:
                yield f"{kind}: {name}", _case(*steps, **_KINDS[kind], **sizes)
    yield "external blocks evict another group's hits (#44409)", _loaded()
    yield from _pairs()


def _usual_steps() -> _Cases:
    """Return cases of chunks and decodes, for each kind of groups."""
    chunks = (_add(22), *[_schedule(0, 5)] * 5, *[_schedule(0, 1, 3)] * 9)
    shared = (_add(13, 13), _schedule(1, 32), _schedule(1, 1, sampled=1), _finish(0))
    evicting = [
        step
        for shared in (0, 0, 4, 12, 8)
        for step in (_add(14, shared, 2), _schedule(0, 32), _finish(0))
    ]
    full = (*_PROMPT, _add(20), _schedule(1, 32), _add(20, 20), _schedule(2, 32))
    resets = (_RESET, _preempt(0), _RESET, _schedule(0, 32), _finish(0), _RESET)
    bounds = [(_preempt(0), _schedule(0, 32, short=short)) for short in (1, 4, 6, 9)]
    again = (_add(13, reuses=True), _schedule(0, 32), _finish(0))
    return [
        (
            "chunks, decodes, a second turn",
            (*chunks, _finish(0), _add(30, 27), _schedule(0, 32)),
            {},
        ),
        ("a prefix in use is shared", (*_PROMPT, *shared, *[_schedule(0, 1)] * 8), {}),
        (
            "whole prompt cached, a token is left",
            (_add(12), _schedule(0, 12), _add(12, 12), _schedule(1, 12)),
            {},
        ),
        ("blocks are evicted", tuple(evicting), {"num_blocks": 9}),
        (
            "no block is left",
            (*full, _preempt(0), _schedule(1, 32), _schedule(0, 9)),
            {"num_blocks": 9},
        ),
        (
            "preempted and resumed",
            (*_PROMPT, *[_schedule(0, 1, 2)] * 6, _preempt(0), _schedule(0, 7)),
            {},
        ),
        ("reset in use, and not in use", (*_PROMPT, *resets), {}),
        (
            "no caching",
            (*_PROMPT, _add(13, 13), _schedule(1, 32), _finish(0)),
            {"caching": False},
        ),
        ("bounds of the hits", (*_PROMPT, *[step for each in bounds for step in each]), {}),
        (
            "the longest length cuts the lookahead",
            (_add(11), _schedule(0, 32, 8), _schedule(0, 1, 8)),
            {"max_model_len": 18},
        ),
        ("a name is used again", (*_PROMPT, _finish(0), *again, *again), {}),
    ]


def _unusual_steps() -> _Cases:
    """Return cases of a step that does not run, and of one that does not compute."""
    loads = (_add(13), _schedule(0, 32, external=8, delayed=True), _add(13, 13))
    later = (_schedule(1, 1), _schedule(0, 1), _add(13, 13), _schedule(2, 1))
    withdrawn = (_add(13), _schedule(0, 5), _schedule(0, 6, withdrawn=True), _schedule(0, 9))
    return [
        ("withdrawn before its step runs (#56525)", withdrawn, {}),
        ("loaded, and cached later", (*loads, *later), {}),
    ]


def _drafts() -> _Cases:
    """Return cases of drafts that are rejected, known or a step ahead."""
    cases: _Cases = []
    for ahead in (False, True):
        steps = [_schedule(0, 1, drafts=3, rejected=i % 4, ahead=ahead) for i in range(6)]
        name = f"rejected drafts{', a step ahead (#47728)' if ahead else ''}"
        resent = (_finish(0), _add(20, 20), _schedule(0, 32))
        cases.append((name, (*_PROMPT, *steps, *resent), {}))
    return cases


def _retained() -> _Cases:
    """Return cases of prompts that come again, where few hits are kept."""
    prompt = (_add(24), _schedule(0, 8), _schedule(0, 12), _schedule(0, 4), _schedule(0, 1))
    again = (_add(24, 24), _schedule(0, 32), _finish(0), _add(28, 24, 2), _schedule(0, 32))
    parted = (_add(24, 18), _schedule(0, 32))
    return [
        ("a prompt of whole blocks comes again", (*prompt, _finish(0), *again), {"retention": 1}),
        ("hits at every second block", (*prompt, _finish(0), *parted), {"retention": 3}),
    ]


def _single() -> _Cases:
    """Return cases of one kind of groups."""
    states, both = _KINDS["states"], _KINDS["full and window"]
    two_sizes = {"groups": [*groups_of([0]), *groups_of([5], factor=2)]}
    rejoined = (_add(13), _schedule(0, 32), _add(13, 5, rejoins=True), _schedule(1, 32))
    same_step = {**_schedule(1, 32), "joins": True}
    chunk = (_add(13), _schedule(0, 12), _add(14, 13), same_step, _schedule(1, 1), _schedule(1, 9))
    longest = (_add(31), _schedule(0, 32, 9), *[_schedule(0, 1, 9)] * 3)
    evicted = ({"do": "evict", "which": 0, "first": 1}, _add(13, 13), _schedule(1, 32))
    inside = ({"do": "evict", "which": 0, "first": 3}, _add(18, 17), _schedule(1, 32))
    behind = (_add(13), _schedule(0, 3, 6), _add(13, 13), _schedule(1, 32))
    kept = (_add(13), _schedule(1, 32), _schedule(1, 29))
    rewound = (_add(13), _schedule(0, 8), _schedule(0, 4), _schedule(0, 1), _add(14, 13))
    two_states = (_add(4), _schedule(0, 4), _add(9), _schedule(1, 32, external=4))
    unhashed = (_add(5), _schedule(0, 32))
    loads = (_add(13), _schedule(0, 32, external=8, delayed=True), _schedule(0, 1))
    return [
        ("equal blocks behind another prefix", rejoined, {"groups": groups_of([5])}),
        ("a state that is computed in the same step", chunk, states),
        ("a request of the longest length", longest, {"num_blocks": 9}),
        ("nothing to allocate", (*_PROMPT, {"do": "nothing", "which": 0}, _schedule(0, 1)), {}),
        ("aborted before it has blocks", (_add(9), _finish(0), *_PROMPT), {}),
        ("evicted blocks in use", (*_PROMPT, *evicted, _finish(0), _add(9, 9)), both),
        ("a prefix that ends in a larger block", (_add(17), _schedule(0, 32), *inside), two_sizes),
        ("blocks for the lookahead are not cached", behind, {}),
        ("blocks are kept free", (*_PROMPT, *kept), {"num_blocks": 9, "watermark": 2}),
        (
            "a drafter beside states (#53912)",
            (*rewound, _schedule(1, 32)),
            {"groups": groups_of([0, "mamba"], 0)},
        ),
        ("a loaded state and that of the step", two_states, {"num_blocks": 3, **states}),
        (
            "a prompt a token behind a block, lookahead hashes of two tokens",
            unhashed,
            {"groups": groups_of([6]), "hash_lookahead": 2},
        ),
        ("a load fills blocks that are not zeroed (#50696)", loads, _KINDS["full and states"]),
    ]


def _loaded() -> Case:
    """Return a case in which external blocks of one group need all but the hits of another."""
    hit = (_add(9), _schedule(0, 32), _finish(0))
    others = (_add(17), _schedule(0, 32), _finish(0))
    loads = (_add(21, 8, 2), _schedule(0, 32, external=12))
    return _case(*hit, *others, *loads, num_blocks=15, groups=groups_of([0, 0]))


def _lacking() -> Case:
    """Return a case in which a window's blocks of a prefix are evicted and the full ones stay."""
    first = (_add(24), _schedule(0, 16), _schedule(0, 32), *[_schedule(0, 1)] * 4)
    others = (_add(16), _schedule(1, 32), _finish(1))
    resent = (_add(24, 12, 2), _schedule(1, 32))
    return _case(*first, *others, *resent, num_blocks=20, groups=groups_of([0, 5]))


def _followed(**sizes: Any) -> Case:
    """Return a case in which two requests part behind a block, and a third is as the second."""
    first = (_add(9), _schedule(0, 32), _finish(0))
    second = (_add(13, 4), _schedule(0, 32), _finish(0))
    return _case(*first, *second, _add(14, 12), _schedule(0, 32), groups=groups_of([0], 0), **sizes)


def _pairs() -> Iterator[tuple[str, Case]]:
    """Yield pairs of steps of two requests that share a prefix."""
    kinds: dict[str, list[Step]] = {
        "add": [_add(9, 8), _schedule(1, 9)],
        "schedule": [_schedule(0, 3, 2)],
        "evict": [{"do": "evict", "which": 0, "first": 1}],
        "finish": [_finish(0)],
        "preempt": [_preempt(0)],
        "reset": [_RESET],
        "nothing": [{"do": "nothing", "which": 0}],
    }
    before = [*[_finish(0)] * 4, _add(9), _schedule(0, 9), _add(11, 9), _schedule(1, 7)]
    for name, steps in step_pairs(kinds, before, [_schedule(0, 9), _schedule(1, 9)]):
        yield name, _case(*steps, groups=groups_of([0, 6]))


def from_batch(batch: Batch) -> Iterator[Case]:
    """Yield a sequence of up to four of the batch's requests, with short prompts."""
    rows = list(zip(batch.query_lens, batch.computed_lens, strict=True))[:4]
    size = min(batch.block_size, 16)
    steps: list[Step] = []
    for index, (query, computed) in enumerate(rows):
        tokens = 1 + (query + computed) % 24
        steps += [_add(tokens, computed % 24), _schedule(index, 1 + query % 24)]
    served = [_schedule(index, 9, 2) for index in range(len(rows))]
    yield _case(
        *steps, *served, _finish(0), *served, _RESET, block_size=size, groups=groups_of([0, 6])
    )
