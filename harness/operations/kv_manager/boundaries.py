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


def _add(tokens: int, shared: int = 0, like: int = 1, *, rejoins: bool = False) -> Step:
    """Return the step that adds a request of `tokens` tokens."""
    prefix = {"like": like if shared or rejoins else 0, "shared": shared, "rejoins": rejoins}
    return {"do": "add", "tokens": tokens - 1, **prefix}


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


_RESET: Step = {"do": "reset"}
_PROMPT = (_add(13), _schedule(0, 32))


def boundaries() -> Iterator[tuple[str, Case]]:
    """Yield named cases, short ones first: a mistake is shown by the first that fails."""
    both: dict[str, Any] = {"groups": groups_of([0, 6])}
    window: dict[str, Any] = {"groups": groups_of([6])}
    draft = {"groups": groups_of([0, 0], 1)}
    window_draft = {"groups": groups_of([0, 6], 1), "hash_lookahead": 1}
    drafts_of_two = {"groups": groups_of([0], 0), "hash_lookahead": 2}
    states = {"groups": groups_of(["mamba"])}
    yield "one group lacks what another has (#46453)", _lacking()
    yield "another token behind a block of a draft", _followed()
    yield "another token behind a block, lookahead hashes", _followed(hash_lookahead=1)
    rejoined = (_add(13), _schedule(0, 32), _add(13, 5, rejoins=True), _schedule(1, 32))
    yield "equal blocks behind another prefix", _case(*rejoined, groups=groups_of([5]))
    same_step = {**_schedule(1, 32), "joins": True}
    chunk = (_add(13), _schedule(0, 12), _add(14, 13), same_step, _schedule(1, 1), _schedule(1, 9))
    yield "a state that is computed in the same step", _case(*chunk, **states)
    yield (
        "a request of the longest length",
        _case(_add(31), _schedule(0, 32, 9), *[_schedule(0, 1, 9)] * 3, num_blocks=9),
    )
    yield "nothing to allocate", _case(*_PROMPT, {"do": "nothing", "which": 0}, _schedule(0, 1))
    yield "aborted before it has blocks", _case(_add(9), _finish(0), *_PROMPT)
    yield from _further_steps()
    sizes = {"groups": [*groups_of([0], 0), *groups_of([3]), *groups_of([6], factor=2)]}
    for name, groups in (
        ("full", {}),
        ("window", window),
        ("full and window", both),
        ("full and its draft", draft),
        ("lookahead hashes", window_draft),
        ("lookahead hashes of two tokens", drafts_of_two),
        ("full and states", {"groups": groups_of([0, "mamba"])}),
        ("full and chunked local", {"groups": groups_of([0, "chunked"])}),
        ("blocks of two sizes", sizes),
    ):
        chunks = (_add(22), *[_schedule(0, 5)] * 5, *[_schedule(0, 1, 3)] * 9)
        yield (
            f"{name}: chunks, decodes, a second turn",
            _case(*chunks, _finish(0), _add(30, 27), _schedule(0, 32), **groups),
        )
        shared = (_add(13, 13), _schedule(1, 32), _schedule(1, 1, sampled=1), _finish(0))
        yield (
            f"{name}: a prefix in use is shared",
            _case(*_PROMPT, *shared, *[_schedule(0, 1)] * 8, **groups),
        )
        yield (
            f"{name}: whole prompt cached, a token is left",
            _case(_add(12), _schedule(0, 12), _add(12, 12), _schedule(1, 12), **groups),
        )
        evicting = [
            step
            for shared in (0, 0, 4, 12, 8)
            for step in (_add(14, shared, 2), _schedule(0, 32), _finish(0))
        ]
        yield f"{name}: blocks are evicted", _case(*evicting, num_blocks=9, **groups)
        full = (*_PROMPT, _add(20), _schedule(1, 32), _add(20, 20), _schedule(2, 32))
        yield (
            f"{name}: no block is left",
            _case(*full, _preempt(0), _schedule(1, 32), _schedule(0, 9), num_blocks=9, **groups),
        )
        yield (
            f"{name}: preempted and resumed",
            _case(*_PROMPT, *[_schedule(0, 1, 2)] * 6, _preempt(0), _schedule(0, 7), **groups),
        )
        resets = (_RESET, _preempt(0), _RESET, _schedule(0, 32), _finish(0), _RESET)
        yield f"{name}: reset in use, and not in use", _case(*_PROMPT, *resets, **groups)
        yield (
            f"{name}: no caching",
            _case(*_PROMPT, _add(13, 13), _schedule(1, 32), _finish(0), caching=False, **groups),
        )
    yield from _pairs()


def _further_steps() -> Iterator[tuple[str, Case]]:
    """Yield cases of steps beside chunks and decodes."""
    window, draft = {"groups": groups_of([6])}, {"groups": groups_of([0, 0], 1)}
    states = {"groups": groups_of(["mamba"])}
    drafts_of_two: dict[str, Any] = {"groups": groups_of([0], 0), "hash_lookahead": 2}
    for name, groups in (("window", window), ("full and its draft", draft), ("states", states)):
        withdrawn = _schedule(0, 6, withdrawn=True)
        yield (
            f"{name}: withdrawn before its step runs (#56525)",
            _case(_add(13), _schedule(0, 5), withdrawn, _schedule(0, 9), **groups),
        )
        loads = (_add(13), _schedule(0, 32, external=8, delayed=True), _add(13, 13))
        later = (_schedule(1, 1), _schedule(0, 1), _add(13, 13), _schedule(2, 1))
        yield f"{name}: loaded, and cached later", _case(*loads, *later, **groups)
    for name, groups in (
        ("full", {}),
        ("window", window),
        ("full and its draft", draft),
        ("lookahead hashes of two tokens", drafts_of_two),
    ):
        for ahead in (False, True):
            steps = [_schedule(0, 1, drafts=3, rejected=i % 4, ahead=ahead) for i in range(6)]
            yield (
                f"{name}: rejected drafts{', a step ahead (#47728)' if ahead else ''}",
                _case(*_PROMPT, *steps, _finish(0), _add(20, 20), _schedule(0, 32), **groups),
            )
    evicted = ({"do": "evict", "which": 0, "first": 1}, _add(13, 13), _schedule(1, 32))
    yield (
        "evicted blocks in use",
        _case(*_PROMPT, *evicted, _finish(0), _add(9, 9), groups=groups_of([0, 6])),
    )
    inside = ({"do": "evict", "which": 0, "first": 3}, _add(18, 17), _schedule(1, 32))
    two_sizes = {"groups": [*groups_of([0]), *groups_of([5], factor=2)]}
    yield (
        "a prefix that ends in a larger block",
        _case(_add(17), _schedule(0, 32), *inside, **two_sizes),
    )
    behind = (_add(13), _schedule(0, 3, 6), _add(13, 13), _schedule(1, 32))
    yield "blocks for the lookahead are not cached", _case(*behind)
    bound = (_preempt(0), _schedule(0, 32, short=6))
    yield "a bound of the hits", _case(*_PROMPT, *bound, groups=groups_of([0, 6]))
    kept = (_add(13), _schedule(1, 32), _schedule(1, 29))
    yield "blocks are kept free", _case(*_PROMPT, *kept, num_blocks=9, watermark=2)
    rewound = (_add(13), _schedule(0, 8), _schedule(0, 4), _schedule(0, 1), _add(14, 13))
    yield (
        "a drafter beside states (#53912)",
        _case(*rewound, _schedule(1, 32), groups=groups_of([0, "mamba"], 0)),
    )
    two_states = (_add(4), _schedule(0, 4), _add(9), _schedule(1, 32, external=4))
    yield "a loaded state and that of the step", _case(*two_states, num_blocks=3, **states)
    unhashed = (_add(5), _schedule(0, 32))
    yield (
        "a prompt a token behind a block, lookahead hashes of two tokens",
        _case(*unhashed, groups=groups_of([6]), hash_lookahead=2),
    )
    loads = (_add(13), _schedule(0, 32, external=8, delayed=True), _schedule(0, 1))
    yield (
        "a load fills blocks that are not zeroed (#50696)",
        _case(*loads, groups=groups_of([0, "mamba"])),
    )
    yield "external blocks evict another group's hits (#44409)", _loaded()


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
