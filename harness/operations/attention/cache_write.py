"""Operation of SPEC.md section 8: new keys and values are written to the cache.

Bug classes: slot -1 taken for the last slot (K16), offsets of 32 bits (K15), a tile of a
kernel that repeats the first one (K19), keys and values exchanged, strides of another layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from attnproof.harness.cases.layers.cache_write import CACHE, SECOND_CACHE, CacheWrite
from attnproof.harness.consumer.attention import read_back, read_back_violations
from attnproof.harness.consumer.batch import expected_tokens_uncached
from attnproof.harness.model.call import Call, Facts, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Case
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.timing import Work
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.attention import cache_write_cases
from attnproof.harness.operations.attention.cache_write_diagnosis import diagnose_cache_write
from attnproof.harness.operations.attention.cache_write_faults import FAULTS
from attnproof.harness.operations.shared.metadata import batch_of

KEY_CACHE, VALUE_CACHE = HALVES = ("key_cache", "value_cache")


@dataclass(frozen=True, kw_only=True)
class _CacheWriteFacts(Facts):
    write: CacheWrite


def _prepare(case: Case, pattern: int, device: str) -> Call:
    write = CacheWrite(batch_of(case), case.params, pattern, device)
    return Call(
        write.args,
        arena=write.arena,
        written=frozenset({CACHE, SECOND_CACHE}),
        facts=_CacheWriteFacts(
            write=write, block_size=batch_of(case).block_size, numbers=write.number_dtype
        ),
    )


def _outputs(call: Call, result: Any) -> Outputs:
    words = call.facts.write.words()
    return {"result": result, KEY_CACHE: words[0], VALUE_CACHE: words[1]}


def _work(call: Call, _result: Any) -> Work:
    """Return the bytes of the keys and values that are read, and of their slots."""
    key, _, cache = list(call.args.values())[:3]
    tokens = int((call.facts.write.slots >= 0).sum())
    return Work(bytes=2 * tokens * key[0].numel() * (key.itemsize + cache.itemsize))


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Read every token back by its slot, and check that all other slots are unchanged."""
    write: CacheWrite = call.facts.write
    live = np.flatnonzero(write.slots >= 0)
    slots = write.slots[live]
    for half, name in enumerate(HALVES):
        size = write.before[half].shape[2:]
        now = outputs[name].cpu().numpy().reshape(-1, *size)
        before = write.before[half].reshape(-1, *size)
        source = write.source[half][live]
        if write.quantised:
            wrong = ~_is_nearest(now[slots], source, write, half)
        else:
            wrong = now[slots] != source
        if wrong.any():
            yield Violation(name, "does not hold the key or value of a token at its slot")
        others = np.setdiff1d(np.arange(len(now)), slots)
        if (now[others] != before[others]).any():
            yield Violation(name, "changed in a slot that no token has")
    if outputs["result"] is not None:
        yield Violation("result", "returns something")


def _consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Read every token that has a slot back through its request's block table."""
    write: CacheWrite = call.facts.write
    expected = expected_tokens_uncached(write.batch)
    tokens = np.flatnonzero(write.slots[: len(expected.requests)] >= 0)
    for half, name in enumerate(HALVES):
        cached, source = read_back(expected, outputs[name], tokens), write.source[half][tokens]
        same = _is_nearest(cached, source, write, half) if write.quantised else cached == source
        yield from read_back_violations(expected, same, tokens, name)


_CODE = np.arange(0x7F)
_EXPONENT = np.maximum(_CODE >> 3, 1)
_MAGNITUDES = ((_CODE & 7) + 8 * (_CODE >= 8)) * 2.0 ** (_EXPONENT - 10.0)
"""Values of the codes 0 to 0x7E: three bits of mantissa, bias 7, subnormals below 8."""
_MIDDLES = (_MAGNITUDES[1:] + _MAGNITUDES[:-1]) / 2


def _is_nearest(codes: np.ndarray, bits: np.ndarray, write: CacheWrite, half: int) -> np.ndarray:
    """Return a mask of the codes nearest to their numbers divided by the scale, found by search."""
    numbers = torch.from_numpy(np.ascontiguousarray(bits)).view(write.dtype).float().numpy()
    with np.errstate(all="ignore"):
        scaled = numbers / np.float32(write.scales[half])
    nan = np.isnan(scaled)
    magnitude = np.where(nan, 0, np.abs(scaled)).astype(np.float64)
    below = np.searchsorted(_MIDDLES, magnitude, side="left")
    above = np.searchsorted(_MIDDLES, magnitude, side="right")
    nearest = np.where(below % 2, above, below)  # a tie is between two codes: take the even one
    nearest = nearest + 0x80 * np.signbit(scaled)
    right: np.ndarray = np.where(nan, codes & 0x7F == 0x7F, codes == nearest)
    return right


reshape_and_cache_flash = Operation(
    name=cache_write_cases.NAME,
    section="8",
    summary="keys and values of new tokens written to the paged cache",
    inputs=Inputs(
        params=cache_write_cases.CacheWriteParams,
        whole_contexts=True,
        problem=cache_write_cases.problem,
        cases=cache_write_cases.cases,
        boundaries=cache_write_cases.boundaries,
        large=cache_write_cases.large,
        from_batch=cache_write_cases.from_batch,
        faults=FAULTS,
    ),
    call=FunctionCall(prepare=_prepare, outputs=_outputs),
    contract=Contract(
        invariants=_invariants,
        consume=_consumed,
        diagnose=diagnose_cache_write,
        may_alias=frozenset(HALVES),
    ),
    bench=Bench(
        cases=cache_write_cases.timed,
        models=cache_write_cases.timed_models,
        served=cache_write_cases.served_cases,
        work=_work,
    ),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (reshape_and_cache_flash,)
