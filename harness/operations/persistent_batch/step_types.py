"""Steps of a `batch_sequence` as a case file may have them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from attnproof.harness.operations.shared.params import MOST_STEPS, Count, Counts, Step

_Size = Annotated[int, msgspec.Meta(ge=0, le=100_000)]


class _Add(Step, tag="add"):
    blocks: Count
    tokens: Count


class _Append(Step, tag="append"):
    which: Count
    blocks: Count


class _Remove(Step, tag="remove"):
    which: Count


class _Condense(Step, tag="condense"):
    pass


class _Swap(Step, tag="swap"):
    i: Count
    j: Count


class _Build(Step, tag="build"):
    lens: Counts
    pad_reqs: Count
    pad_tokens: Count


class _Reorder(Step, tag="reorder"):
    lens: Counts
    threshold: Count


class _Split(Step, tag="split"):
    threshold: Count


class _Advance(Step, tag="advance"):
    pass


class _Dummy(Step, tag="dummy"):
    reqs: Count
    tokens: Count


class _Slots(Step, tag="slots"):
    pass


class _Cut(Step, tag="cut"):
    at: Count


class _Local(Step, tag="local"):
    blocks: Count


class _Bad(Step, tag="bad"):
    kind: Count


_AnyStep = (
    _Add
    | _Append
    | _Remove
    | _Condense
    | _Swap
    | _Build
    | _Reorder
    | _Split
    | _Advance
    | _Dummy
    | _Slots
    | _Cut
    | _Local
    | _Bad
)


class BatchParams(msgspec.Struct, forbid_unknown_fields=True):
    """Parameters of a `batch_sequence`: sizes of the buffers, and the steps."""

    max_num_reqs: _Size
    max_num_tokens: _Size
    max_num_blocks: _Size
    block_size: _Size
    steps: Annotated[list[_AnyStep], msgspec.Meta(max_length=MOST_STEPS)]
