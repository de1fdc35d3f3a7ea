"""Operations of SPEC.md section 18: block ids of a transfer between two engines.

Bug classes: the first blocks of the prefill where the decode side lacks the last (#48758), kernel
blocks counted by the other side's ratio (#42097), all blocks for an empty list, states that are
split into kernel blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, Literal

from hypothesis import strategies as st
from msgspec import Meta

from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.case import Batch
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.arguments import Values
from attnproof.harness.operations.derived.derive import Example, Step, derive_built_in, one_of
from attnproof.harness.operations.derived.params import Parameter
from attnproof.harness.operations.shared.params import Some
from attnproof.reference import map_block_ids_for_block_size_ratio as map_reference
from attnproof.reference import pair_block_ids as pair_reference

_Number = Annotated[int, Meta(ge=0, le=4096)]
_Group = Annotated[list[_Number], Meta(min_length=3, max_length=3)]
_Groups = Annotated[list[_Group], Meta(max_length=64)]
"""True of a group with states, its blocks that are needed, its blocks that are cached."""
_USUAL = [[0, 3, 2], [0, 1, 0]]
_HYBRID = [[0, 3, 2], [1, 1, 2]]
_GROUPS: tuple[list[list[int]], ...] = (
    _USUAL,
    _HYBRID,
    [],
    [[0, 0, 3]],
    [[0, 2, 1], [0, 0, 4]],
    [[1, 0, 2]],
    [[1, 2, 0]],
)
_DRAWN = st.lists(st.tuples(st.integers(0, 1), *[st.integers(0, 5)] * 2).map(list), max_size=4)
_RATIOS = {"decode": "decode_ratio", "prefill": "prefill_ratio", "local": "block_size_ratio"}
"""Parameter with the kernel blocks of a block of one side."""
_SHARED = "makes a few short lists of a request: there is nothing to make faster"


def _is_state(values: Values) -> list[bool]:
    return [bool(state) for state, *_ in values.params["groups"]]


def _prefill_ratio(values: Values) -> int:
    hybrid = any(_is_state(values))
    return int(values.params["prefill_parts" if hybrid else "decode_parts"])


def _pair_side(side: Literal["decode", "prefill"], values: Values) -> list[list[int]]:
    """Return the block ids of one side; with two ratios both hold as many kernel blocks."""
    ratio = {"decode": values["decode_ratio"], "prefill": values["prefill_ratio"]}
    hybrid, alike = any(_is_state(values)), len({*ratio.values()}) == 1
    lists: list[list[int]] = []
    for state, needed, cached in values.params["groups"]:
        more = cached if side == "prefill" else bool(hybrid and values.params["one_more"])
        if state or alike:
            count = needed + (more if side == "decode" or cached else 0)
        else:
            count = -(-needed // ratio[side])
        lists.append(_ids(values, side == "prefill", len(lists), count))
    return lists


def _ids(values: Values, is_remote: bool, group: int, count: int) -> list[int]:
    """Return distinct ids that do not rise; a remote id is that of no local block."""
    first = values.params["first"] + 8192 * (2 * group + is_remote)
    return [first + (block ^ 1) for block in range(count)]


def _map_side(side: Literal["local", "remote"], values: Values) -> list[list[int]]:
    """Return local blocks, which hold the remote ones, and `unused` fewer remote ones."""
    params = values.params
    lists: list[list[int]] = []
    for state, needed, cached in params["groups"]:
        count = needed
        if side == "remote" and not state:
            count = max(0, (needed + cached) * values["block_size_ratio"] - params["unused"])
        lists.append(_ids(values, side == "remote", len(lists), count))
    return [] if side == "local" and params["no_list"] and not any(lists) else lists


def _kernel_ids(call: Call, side: str, group: int) -> list[int]:
    """Return the blocks of a group that a result may hold, in the order of its tokens."""
    ratio = 1 if call["is_state"][group] else call.args.get(_RATIOS.get(side, ""), 1)
    return [i * ratio + part for i in call[f"{side}_block_ids"][group] for part in range(ratio)]


def _paired(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check that each pair holds the same tokens, and that no block that is needed is left out."""
    alike = call["decode_ratio"] == call["prefill_ratio"]
    for group, state in enumerate(call["is_state"]):
        ours, theirs = (_kernel_ids(call, side, group) for side in ("decode", "prefill"))
        cached = max(0, len(theirs) - len(ours)) if state or alike else 0
        decode, prefill = outputs["decode"][group], outputs["prefill"][group]
        if len(decode) != len(prefill):
            yield Violation("prefill", "has another number of blocks than the decode side")
        elif not {*decode} <= {*ours} or not {*prefill} <= {*theirs}:
            yield Violation("prefill", "has a block of no token of the request")
        elif [ours.index(i) + cached for i in decode] != [theirs.index(i) for i in prefill]:
            yield Violation("prefill", "is paired with blocks of other tokens")
        elif len(decode) < min(len(ours), len(theirs)):
            yield Violation("decode", "leaves out a block that has to be read")


def _mapped(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Find each block of the result by its place, and the number of them by the remote list."""
    for group, blocks in enumerate(outputs["local"]):
        local, remote = call["local_block_ids"][group], call["remote_block_ids"][group]
        state = call["is_state"][group]
        ratio = 1 if state else call["block_size_ratio"]
        owners = [local[place // ratio] for place in range(min(len(blocks), len(local) * ratio))]
        if [block // ratio for block in blocks] != owners:
            yield Violation("local", "has a block of other tokens than its place says")
        elif not state and len(blocks) > len(remote):
            yield Violation("local", "has a block without a token")


def _diagnose(call: Call, place: Place, expected: Any, got: Any) -> str:
    """Name the mistake in the first wrong group, "" for an unknown one."""
    group = next(g for g, right in enumerate(expected) if right != got[g])
    right, seen, ids = expected[group], got[group], _kernel_ids(call, place.field, group)
    if not right:
        return "blocks for an empty list"
    if not {*seen} <= {*ids}:
        return "states that are split" if call["is_state"][group] else "blocks of another ratio"
    if len(seen) > len(right):
        return "blocks without a partner"
    return "the first blocks for the last" if seen == ids[: len(right)] else ""


def _pair_examples() -> Iterator[Example]:
    for decode, prefill in ((6, 10), (10, 6), (2, 3)):
        parts = {"decode_parts": decode, "prefill_parts": prefill}
        yield (
            f"ratios {decode} and {prefill} (#42097)",
            None,
            parts | {"groups": [[0, 10, 0], [1, 1, 0]]},
        )
    yield "cached prefix (#48758)", None, {"groups": [[0, 1, 1]]}
    yield "one block more than the prefill", None, {"groups": _HYBRID[1:] * 2, "one_more": True}


def _pair_steps(batch: Batch) -> Iterator[Step]:
    sizes = [
        (len(row), c // batch.block_size)
        for row, c in zip(batch.blocks, batch.computed_lens, strict=True)
    ]
    yield batch, {"groups": [[0, max(0, n - c), c] for n, c in sizes[:4]]}


def _parameters(**more: Parameter) -> dict[str, Parameter]:
    return {
        "groups": Parameter(_Groups, _GROUPS, _DRAWN),
        "first": one_of(Annotated[int, Meta(ge=0, le=2**31)], 1, 0, 2**27, 2**31),
        **more,
    }


_FAULTS = {
    "{}: too many groups": lambda ids: [*ids, *[[0]] * 65],
    "{}: a negative id": lambda ids: [[-1], *ids[1:]],
}


def _faults(*sides: str) -> dict[str, Fault]:
    return {
        text.format(side): Fault(side, change, applies=lambda case: bool(case.params["groups"]))
        for side in sides
        for text, change in _FAULTS.items()
    }


pair_block_ids = derive_built_in(
    pair_reference,
    section="18",
    summary="the kernel blocks of a transfer from prefill to decode",
    values={
        "is_state": _is_state,
        "decode_ratio": lambda values: values.params["decode_parts"],
        "prefill_ratio": _prefill_ratio,
        "decode_block_ids": partial(_pair_side, "decode"),
        "prefill_block_ids": partial(_pair_side, "prefill"),
    },
    parameters=_parameters(
        decode_parts=one_of(Some, 2, 1, 3, 16),
        prefill_parts=one_of(Some, 2, 1, 5, 16),
        one_more=one_of(bool, False, True),
    ),
    examples=_pair_examples,
    steps=_pair_steps,
    faults=_faults("decode_block_ids", "prefill_block_ids"),
    invariants=_paired,
    diagnose=_diagnose,
    built_in=BuiltIn(shared=_SHARED),
)

map_block_ids_for_block_size_ratio = derive_built_in(
    map_reference,
    section="18",
    summary="local block ids in blocks of the remote size",
    values={
        "is_state": _is_state,
        "block_size_ratio": lambda values: values.params["parts"],
        "local_block_ids": partial(_map_side, "local"),
        "remote_block_ids": partial(_map_side, "remote"),
    },
    parameters=_parameters(
        parts=one_of(Some, 4, 2, 1, 16),
        unused=one_of(_Number, 1, 0, 3, 40),
        no_list=one_of(bool, False, True),
    ),
    steps=_pair_steps,
    faults=_faults("local_block_ids", "remote_block_ids"),
    invariants=_mapped,
    diagnose=_diagnose,
    built_in=BuiltIn(shared=_SHARED),
)

OPERATIONS = (pair_block_ids, map_block_ids_for_block_size_ratio)
