"""Operation of SPEC.md section 5: the predicate of a sequence group without block tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from hypothesis import strategies as st
from msgspec import Meta

from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.operation import Bench, Contract, Inputs, Operation
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.faults import wrong_type
from attnproof.harness.operations.shared.metadata import returned
from attnproof.harness.operations.shared.params import MOST_STEPS, Counts, Params

NAME = "is_block_tables_empty"


_Key = Annotated[str, Meta(pattern=r"^[0-9]{1,9}$")]
"""Id of a sequence: the keys of JSON are strings."""


class _Params(Params):
    block_tables: Annotated[dict[_Key, Counts | None], Meta(max_length=MOST_STEPS)] | None


def _case(tables: dict[str, Any] | None) -> Case:
    return Case(NAME, None, {"block_tables": tables})


def _cases() -> st.SearchStrategy[Case]:
    table = st.none() | st.lists(st.integers(0, 9), max_size=2)
    keys = st.sampled_from(("0", "1", "2"))
    return st.builds(_case, st.none() | st.dictionaries(keys, table, max_size=3))


def _boundaries() -> Iterator[tuple[str, Case]]:
    yield "no tables", _case(None)
    yield "empty dict", _case({})
    yield "only None", _case({"0": None, "1": None})
    yield "an empty table counts", _case({"0": None, "1": []})
    yield "first is None", _case({"0": None, "1": [3]})
    yield "last is None", _case({"0": [3], "1": None})


def _steps(batch: Batch) -> Iterator[Case]:
    rows = batch.blocks[:3]
    yield _case({str(row): list(blocks[:4]) or None for row, blocks in enumerate(rows)})


def _prepare(case: Case, _pattern: int, _device: str) -> Call:
    tables = case.params["block_tables"]
    block_tables = None if tables is None else {int(key): table for key, table in tables.items()}
    return Call({"block_tables": block_tables}, plain={"block_tables": block_tables})


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    tables = call["block_tables"] or {}
    if outputs["result"] is (len([key for key in tables if tables[key] is not None]) > 0):
        yield Violation("result", "does not agree with the block tables")


is_block_tables_empty = Operation(
    name=NAME,
    section="5",
    summary="True if no sequence has a block table",
    inputs=Inputs(
        params=_Params,
        has_batch=False,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_steps,
        faults={"tables of another type": wrong_type("block_tables")},
    ),
    call=FunctionCall(prepare=_prepare, outputs=returned),
    contract=Contract(invariants=_invariants),
    bench=Bench(cases=lambda batch: _steps(batch) if batch.num_requests == 8 else ()),
)

OPERATIONS = (is_block_tables_empty,)
