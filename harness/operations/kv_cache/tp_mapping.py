"""Operation of SPEC.md section 18: ranks of another engine that a rank reads its cache from.

Bug classes: a rank that does not hold the head, the head of another rank in a shared block, a
head that is read twice, a state of which a part is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.case import Batch
from attnproof.harness.model.operation import BuiltIn
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.arguments import Values
from attnproof.harness.operations.derived.derive import Example, Step, derive_built_in, one_of
from attnproof.harness.operations.shared.params import Few, Some
from attnproof.reference import compute_tp_mapping as reference


def _examples() -> Iterator[Example]:
    for times in (2, 4):
        for remote in (False, True):
            for heads in (1, 2, 8, 16):
                side = "remote" if remote else "local"
                for rank in range(4):
                    name = f"{times} times as many {side} ranks, {heads} heads, rank {rank}"
                    sizes = {"size": 2, "times": times, "more_remote": remote}
                    yield name, None, sizes | {"heads": heads, "rank": rank}


def _steps(batch: Batch) -> Iterator[Step]:
    """Yield a rank by the number of requests: nothing of a batch decides the ranks."""
    yield batch, {"rank": batch.num_requests % 8, "size": 4}


def _size(values: Values) -> int:
    params = values.params
    return int(params["size"] * (1 if params["more_remote"] else params["times"]))


def _remote_size(values: Values) -> int:
    params = values.params
    return int(params["size"] * (params["times"] if params["more_remote"] else 1))


def _held(rank: int, ranks: int, heads: int) -> range:
    """Return the heads that a rank holds."""
    first = rank * heads // ranks
    return range(first, first + max(1, heads // ranks))


def _violations(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Look up each head and each state of the rank where it is said to be."""
    ranks, remote, heads = call["tp_size"], call["remote_tp_size"], call["total_num_kv_heads"]
    needed, sources = _held(call["tp_rank"], ranks, heads), outputs["attention_ranks"]
    found = [head for rank in sources for head in _held(rank, remote, heads)]
    first = outputs["head_offset"] * len(needed)
    if ranks > remote:
        found = found[first : first + len(needed)]
    if found != [*needed]:
        yield Violation("attention_ranks", "do not hold the heads of the rank, each once")
    for rank, slot in outputs["attention_slots"].items():
        if _held(rank, remote, heads) != _held(sources[slot], remote, heads):
            yield Violation("attention_slots", "put a rank's heads into the place of others")
            return
    parts = {part for rank in outputs["state_ranks"] for part in _share(rank, remote, ranks)}
    if call["has_states"] and not {*_share(call["tp_rank"], ranks, remote)} <= parts:
        yield Violation("state_ranks", "do not hold the whole state of the rank")


def _share(rank: int, ranks: int, others: int) -> range:
    """Return the parts of a state that a rank holds, of as many as the larger side has ranks."""
    parts = max(ranks, others) // ranks
    return range(rank * parts, (rank + 1) * parts)


def _diagnose(call: Call, place: Place, expected: Any, got: Any) -> str:
    if place.field in ("attention_ranks", "state_ranks") and len(got) != len(expected):
        part = "part" if place.field == "state_ranks" else "head"
        return f"a {part} read twice" if len(got) > len(expected) else f"a {part} left out"
    if place.field == "head_offset" and not call["is_mla"]:
        return "another rank's heads"
    return "a rank without the heads" if place.field == "attention_ranks" else ""


compute_tp_mapping = derive_built_in(
    reference,
    section="18",
    summary="the ranks of another engine that hold a rank's cache",
    values={
        "tp_size": _size,
        "remote_tp_size": _remote_size,
        "tp_rank": lambda values: values.params["rank"] % _size(values),
        "total_num_kv_heads": lambda values: 1 if values["is_mla"] else values.params["heads"],
    },
    parameters={
        "rank": one_of(Few, 1, 0, 2, 3, 5, 7, 11),
        "size": one_of(Some, 2, 1, 3, 4),
        "times": one_of(Some, 2, 1, 3, 4),
        "more_remote": one_of(bool, False, True),
        "heads": one_of(Some, 2, 1, 3, 4, 8, 12, 16),
    },
    examples=_examples,
    steps=_steps,
    invariants=_violations,
    diagnose=_diagnose,
    built_in=BuiltIn(shared="runs once for each pair of engines: nothing to make faster"),
)

OPERATIONS = (compute_tp_mapping,)
