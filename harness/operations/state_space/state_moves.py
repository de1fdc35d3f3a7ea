"""Operations of SPEC.md section 17: copies of states before and after a step of mode "align".

Bug classes: the accepted tokens of the batch's row in the place of its slot's (#55506, #51571), a
block of another size for the column (#55600), a window that is copied over itself (#50729).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from msgspec import Meta

from attnproof.harness.cases.batches.request_rows import request_rows
from attnproof.harness.consumer.batch import int64_array
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.arguments import Values
from attnproof.harness.operations.derived.derive import Example, Step, derive_built_in, one_of
from attnproof.harness.operations.derived.params import Parameter, layout_of
from attnproof.harness.operations.shared.params import Few, Some
from attnproof.reference import postprocess_mamba_align as after_reference
from attnproof.reference import preprocess_mamba_align as before_reference

_Count = Annotated[int, Meta(ge=0, le=4096)]
_Row = Annotated[list[_Count], Meta(min_length=4, max_length=4)]
_Rows = Annotated[list[_Row], Meta(max_length=64)]
"""Computed tokens, tokens of the query, tokens that a speculative step ran, and accepted ones.

A row has a speculative step if it ran any tokens: before the query, or, for the copies after a
step, in its place."""
_ROWS: tuple[list[list[int]], ...] = (
    [[7, 4, 0, 0], [6, 2, 3, 2], [0, 9, 0, 0]],
    [[5, 1, 4, 4], [2, 1, 4, 2], [3, 3, 4, 1], [7, 5, 2, 2], [8, 1, 1, 1]],
    [],
    [[0, 4, 0, 0], [4, 4, 0, 0], [3, 1, 0, 0], [4, 1, 0, 0]],
    [[11, 6, 5, 5]],
)
_DRAWN = st.lists(
    st.tuples(*(st.integers(0, most) for most in (40, 20, 6, 6))).map(list), max_size=6
)


class _Numbers(NamedTuple):
    """Numbers of a row, as an engine's pools have them."""

    column: int
    """Running block, -1 without one."""
    computed: int
    accepted: int
    target: int
    """Column that the state belongs to."""
    behind: int
    """Tokens between the running block's state and the one that is copied."""
    moves: bool
    """True if the state is not there yet."""


def _before(row: list[int], block_size: int) -> _Numbers:
    """Return the numbers of a row before a step."""
    computed, query, ran, accepted = row[0], max(1, row[1]), *row[2:]
    column = -(-(computed + ran) // block_size) - 1
    accepted = max(1, min(accepted, ran))
    computed += accepted if ran else 0
    target = -(-(computed + query) // block_size) - 1
    return _Numbers(column, computed, accepted, target, accepted - 1, column != target)


def _after(row: list[int], block_size: int) -> _Numbers:
    """Return the numbers of a row after a step, which ran speculative tokens or the query."""
    computed, query, ran, accepted = row[0], max(1, row[1]), *row[2:]
    column = -(-(computed + (ran or query)) // block_size) - 1
    accepted = max(1, min(accepted, ran))
    before, computed = computed, computed + (accepted if ran else query)
    # The running block has the state of the first speculative token, or of the whole query.
    first, boundary = before + 1 if ran else computed, computed // block_size * block_size
    target, behind = boundary // block_size - 1, boundary - first
    moves = behind >= 0 and (column, behind) != (target, 0)
    return _Numbers(column, computed, accepted, target, max(0, behind), moves)


class _Pools:
    """Pools by slot, filled from the rows of a case."""

    def __init__(
        self, of_row: Callable[[list[int], int], _Numbers], params: dict[str, Any]
    ) -> None:
        self.rows = [of_row(row, params["block"]) for row in params["rows"]]
        self.size = len(self.rows) + params["spare"]
        slots = request_rows(len(self.rows), self.size, params["slot_order"])
        self.slots: list[int] = slots.tolist()
        columns = [max(row.column + row.accepted, row.target, 0) for row in self.rows]
        self.width = max(columns, default=0) + 1
        self.window = max((row.accepted for row in self.rows), default=1) + params["more"]
        self.blocks = self.size * self.width + 1

    def pool(self, name: str) -> np.ndarray:
        """Return a pool with one number of each row, and another one in the slots of no row."""
        pool = np.full(self.size, 3)
        pool[self.slots] = [getattr(row, name) for row in self.rows]
        return pool

    def table(self) -> np.ndarray:
        """Return distinct blocks for all columns, in no order."""
        ids = np.random.default_rng(2).permutation(self.blocks - 1) + 1
        return ids.reshape(self.size, self.width)


def _numbered(*shape: int) -> np.ndarray:
    """Return words of which each says its place."""
    return np.arange(1, int(np.prod(shape)) + 1).reshape(shape)


def _violations(
    of_row: Callable[[list[int], int], _Numbers], call: Call, outputs: Outputs
) -> Iterator[Violation]:
    """Look for each row's state and window where the next step, or a later hit, reads them."""
    pools, table = _Pools(of_row, call.facts.params), int64_array(call["block_table"])
    after = {name: int64_array(outputs[name]) for name in ("conv_state", "temporal_state")}
    before = {name: _numbered(*state.shape) for name, state in after.items()}
    keeps = np.ones(len(after["temporal_state"]), dtype=bool)
    for slot, row in zip(int64_array(call["idx_mapping"]), pools.rows, strict=True):
        if slot < 0 or row.column < 0 or not row.moves:
            continue
        blocks = table[slot]
        target, source, state = (
            blocks[column] for column in (row.target, row.column, row.column + row.behind)
        )
        keeps[target] = False
        if (after["temporal_state"][target] != before["temporal_state"][state]).any():
            yield Violation("temporal_state", "holds the state of other tokens")
        window = before["conv_state"][source, row.behind :]
        if (after["conv_state"][target, : len(window)] != window).any():
            yield Violation("conv_state", "holds the window of other tokens")
    for name, states in after.items():
        if (states != before[name])[keeps].any():
            yield Violation(name, "changed in a block that gets no state")


def _diagnose(_call: Call, place: Place, expected: Any, got: Any) -> str:
    """Name what stands in the first wrong blocks, "" for another field."""
    if place.field not in ("conv_state", "temporal_state"):
        return ""
    right, seen = int64_array(expected), int64_array(got)
    wrong, before = right != seen, _numbered(*right.shape)
    if (seen == before)[wrong].all():
        return "a state not copied"
    if (right == before)[wrong].all():
        return "a block changed that gets no state"
    return "the state of other tokens"


def _examples() -> Iterator[Example]:
    for ran in (1, 2, 4, 5):
        rows = [[c, 1 + c % 3, ran, a] for c in range(5) for a in range(1, ran + 1)]
        yield f"{ran} tokens at each place of a block", None, {"rows": rows}
    rows = [[c, q, 0, 0] for c in (0, 3, 4, 5) for q in (1, 4, 5, 9)]
    yield "chunks of prefills", None, {"rows": rows}
    for block in (1, 3, 512):
        rows = [[block * 2 - 1, block, 3, 2], [block, 1, 2, 2], [0, block + 1, 0, 0]]
        yield f"blocks of {block} (#55600)", None, {"rows": rows, "block": block}


def _unreal(case: Case) -> str:
    return "the words of a window have no gaps between them" if layout_of(case).gap else ""


def _steps(batch: Batch) -> Iterator[Step]:
    """Yield the first rows, of which decodes are speculative."""
    rows = zip(batch.query_lens[:16], batch.computed_lens[:16], strict=True)
    taken = [[c % 64, q % 65, *((4, 1 + c % 4) if q == 1 else (0, 0))] for q, c in rows]
    yield batch, {"rows": taken}


def _derived(
    reference: Any,
    of_row: Callable[[list[int], int], _Numbers],
    summary: str,
    *,
    values: Mapping[str, Callable[[Values], Any]] = MappingProxyType({}),
    parameters: Mapping[str, Parameter] = MappingProxyType({}),
    faults: Mapping[str, Fault] = MappingProxyType({}),
) -> Operation:
    """Return an operation with further values, parameters and faults."""

    def of(make: Callable[[_Pools], Any]) -> Callable[[Values], Any]:
        return lambda values: make(_Pools(of_row, values.params))

    def slots(values: Values) -> np.ndarray:
        pools = _Pools(of_row, values.params)
        left_out = values.params.get("left_out", 0)
        return np.array([-1] * min(left_out, len(pools.slots)) + pools.slots[left_out:])

    return derive_built_in(
        reference,
        section="17",
        summary=summary,
        values={
            "R": of(lambda pools: len(pools.rows)),
            "P": of(lambda pools: pools.size),
            "W": of(lambda pools: pools.width),
            "S": of(lambda pools: pools.blocks),
            "C": of(lambda pools: pools.window),
            "D": lambda values: values.params["channels"],
            "H": lambda values: values.params["heads"],
            "idx_mapping": slots,
            "state_idx": of(lambda pools: pools.pool("column")),
            "num_computed_tokens": of(lambda pools: pools.pool("computed")),
            "num_accepted_tokens": of(lambda pools: pools.pool("accepted")),
            "block_table": of(_Pools.table),
            "conv_state": lambda values: _numbered(*(values.sizes[axis] for axis in "SCD")),
            "temporal_state": lambda values: _numbered(values.sizes["S"], values.sizes["H"]),
            "block_size": lambda values: values.params["block"],
            **values,
        },
        parameters={
            "rows": Parameter(_Rows, _ROWS, _DRAWN),
            "block": one_of(Some, 4, 1, 2, 16, means="Tokens of a block"),
            "channels": one_of(Some, 3, 1, 65, means="Words of a token in a window"),
            "heads": one_of(Some, 5, 1, 130, means="Words of a state"),
            "more": one_of(Few, 2, 0, means="Tokens of a window beside the accepted ones"),
            "spare": one_of(Few, 2, 0, 5, means="Slots of no row"),
            "slot_order": one_of(Few, 3, *(0, 1, 2, 4, 5, 6, 7), means="Order of `request_rows`"),
            **parameters,
        },
        examples=_examples,
        steps=_steps,
        faults={
            "a table too narrow": Fault(
                "block_table",
                lambda table: table[:, :0].clone(),
                applies=lambda case: any(
                    of_row(row, case.params["block"]).moves for row in case.params["rows"]
                ),
                cpu_only=True,
            ),
            **faults,
        },
        unreal=_unreal,
        may_sync=lambda _: True,
        invariants=partial(_violations, of_row),
        diagnose=_diagnose,
        built_in=BuiltIn(shared="an engine's kernel copies the bytes of few rows in all layers"),
    )


def _has_rows(case: Case) -> bool:
    return bool(case.params["rows"])


preprocess_mamba_align = _derived(
    before_reference,
    _before,
    "states where a step reads them",
    values={
        "query_start_loc": lambda values: np.cumsum(
            [0, *(max(1, row[1]) for row in values.params["rows"])]
        )
    },
    faults={
        "more accepted tokens than a window has": Fault(
            "num_accepted_tokens",
            lambda accepted: accepted + 4096,
            applies=_has_rows,
            cpu_only=True,
        ),
        "computed tokens below 0": Fault(
            "num_computed_tokens",
            lambda computed: computed - 2**16,
            applies=_has_rows,
            cpu_only=True,
        ),
    },
)
postprocess_mamba_align = _derived(
    after_reference,
    _after,
    "states at full blocks after a step",
    parameters={"left_out": one_of(Few, 0, 1, 2, means="Rows without a slot")},
)
OPERATIONS = (preprocess_mamba_align, postprocess_mamba_align)
