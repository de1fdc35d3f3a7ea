"""Operation of SPEC.md section 18: new blocks are zeroed in the caches of all layers.

Bug classes: a page counted as the stride between blocks, which reaches into other layers
(#50276), pieces of a block that are left, blocks of states.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta

from attnproof.harness.cases.batches.request_rows import request_rows
from attnproof.harness.consumer.batch import int64_array
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.case import Batch
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.arguments import Values
from attnproof.harness.operations.derived.derive import Example, Step, derive_built_in, one_of
from attnproof.harness.operations.shared.params import Few, Some
from attnproof.reference import zero_blocks as reference

_ORDERS = ("LBHNC", "BLHNC", "BHLNC", "LHBNC", "BHNC")
"""Axes in memory, from the outermost one: layers, blocks, heads, tokens, channels.

Without L the layers lie over each other, with other numbers of heads."""
_SIZES = ("layers", "heads", "tokens", "channels")
_Blocks = Annotated[int, Meta(ge=2, le=1024)]
"""With one block the steps do not say what lies outside it."""
_View = tuple[int, list[int], list[int], bool]
"""Offset, shape, strides, True of a state."""


def _views(values: Values) -> Iterator[_View]:
    """Yield the views of the layers, and behind them one of states."""
    params = values.params
    blocks = values["num_blocks"] * params["parts"]
    sizes = dict(zip("BLHNC", (blocks, *(params[name] for name in _SIZES)), strict=True))
    step, steps = 1, {"L": 0}
    for axis in reversed(params["memory_order"]):
        step += params["unused"] if axis == "B" else 0
        steps[axis] = step
        step *= sizes[axis]
    strides = [steps[axis] for axis in "BHNC"]
    first = params["before"]
    for layer in range(sizes["L"]):
        # The widest of views that lie over each other is the one in the middle.
        narrower = 0 if steps["L"] else abs(layer - sizes["L"] // 2)
        heads = max(1, sizes["H"] - narrower)
        yield first + layer * steps["L"], [blocks, heads, sizes["N"], sizes["C"]], strides, False
    yield first + step, [values["num_blocks"], 2], [2, 1], True


def _steps(batch: Batch) -> Iterator[Step]:
    """Yield the blocks that a step's tokens begin, in a pool of twice as many."""
    rows = zip(batch.query_lens, batch.computed_lens, strict=True)
    size = batch.block_size
    new = sum(-(-(q + c) // size) - -(-c // size) for q, c in rows)
    yield batch, {"new": min(new, 500), "blocks": 2 * min(new, 500) + 2}


def _column(column: int, values: Values) -> list[Any]:
    return [view[column] for view in _views(values)]


def _size(values: Values) -> int:
    return 8 + max(first + shape[0] * steps[0] * 2 for first, shape, steps, _ in _views(values))


def _numbered(size: int) -> np.ndarray:
    """Return words of which each says its place, and none is zero."""
    return np.arange(1, size + 1)


def _words(call: Call, view: int, block: int) -> np.ndarray:
    """Return the words of a block in a layer's view."""
    shape, steps = call["shapes"][view], call["strides"][view]
    ratio = shape[0] // call["num_blocks"]
    places = np.indices([ratio, *shape[1:]]).reshape(len(shape), -1)
    places[0] += block * ratio
    return np.asarray(call["offsets"][view] + np.array(steps) @ places)


def _violations(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Find the words of the new blocks by the views: they are zero, and all others stay."""
    got = int64_array(outputs["storage"])
    is_new = np.zeros(len(got), dtype=bool)
    for view, state in enumerate(call["is_state"]):
        for block in [] if state else call["block_ids"]:
            is_new[_words(call, view, block)] = True
    if got[is_new].any():
        yield Violation("storage", "a new block holds what it held before")
    if (got != _numbered(len(got)))[~is_new].any():
        yield Violation("storage", "a word changed that is in no new block")


def _diagnose(_call: Call, _place: Place, expected: Any, got: Any) -> str:
    return (
        "stale keys in a new block" if got[expected == 0].any() else "zeros beside the new blocks"
    )


def _examples() -> Iterator[Example]:
    for order in _ORDERS:
        yield f"memory {order} (#50276)", None, {"memory_order": order, "layers": 3, "parts": 2}
        yield f"memory {order} with gaps", None, {"memory_order": order, "unused": 3}


zero_blocks = derive_built_in(
    reference,
    section="18",
    summary="zeros in the blocks that requests get",
    values={
        "W": _size,
        "storage": lambda values: _numbered(_size(values)),
        "offsets": lambda values: _column(0, values),
        "shapes": lambda values: _column(1, values),
        "strides": lambda values: _column(2, values),
        "is_state": lambda values: _column(3, values),
        "num_blocks": lambda values: values.params["blocks"],
        "block_ids": lambda values: request_rows(
            min(values.params["new"], values.params["blocks"]),
            values.params["blocks"],
            values.params["id_order"],
        ).tolist(),
    },
    parameters={
        "memory_order": one_of(Literal[_ORDERS], *_ORDERS, means="Axes, the outermost first"),
        "layers": one_of(Some, 2, 1, 3, means="Layers with keys"),
        "heads": one_of(Some, 2, 1, 5),
        "tokens": one_of(Some, 4, 1, 16, means="Tokens of a kernel block"),
        "channels": one_of(Some, 4, 1, 65, means="Words of a token and head"),
        "parts": one_of(Some, 1, 2, 3, means="Kernel blocks of a block"),
        "blocks": one_of(_Blocks, 5, 2, 17, means="Blocks of the pool"),
        "new": one_of(Few, 2, 0, 1, 9, means="Blocks to be zeroed"),
        "id_order": one_of(Few, 3, *(0, 1, 2, 4, 5, 6, 7), means="Order of `request_rows`"),
        "unused": one_of(Few, 0, 1, 3, means="Words of padding behind a kernel block"),
        "before": one_of(Few, 2, 0, 5, means="Words before the first cache"),
    },
    examples=_examples,
    steps=_steps,
    faults={
        "a block beyond the pool": Fault("block_ids", lambda ids: [*ids, 2**20]),
        "a view beyond the memory": Fault("offsets", lambda offsets: [2**20, *offsets[1:]]),
        "blocks that overlap": Fault(
            "strides",
            lambda strides: [[1, *strides[0][1:]], *strides[1:]],
            applies=lambda case: case.params["tokens"] > 1 and case.params["blocks"] > 1,
        ),
    },
    invariants=_violations,
    diagnose=_diagnose,
    built_in=BuiltIn(shared="one write of the device for each piece of a block"),
)
OPERATIONS = (zero_blocks,)
