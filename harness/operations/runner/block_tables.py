"""Class of SPEC.md section 13 that keeps the blocks of request slots: `BlockTables`.

One case is one step. Earlier requests fill all rows, columns and buffers; then the batch's
requests take their slots, and the step is gathered. `runner_sequence` runs many steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from attnproof.harness.model.call import Call, Free, Outputs
from attnproof.harness.model.call_kinds import ClassCall, Clocked
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.runner.block_tables_cases import (
    CONSTRUCTOR_PARAMETERS,
    NAME,
    TablesParams,
    prepare,
    problem,
    tables_boundaries,
    tables_case,
    tables_cases,
    tables_of_batch,
    unreal,
)
from attnproof.harness.operations.runner.block_tables_faults import FAULTS
from attnproof.harness.operations.runner.judge import (
    Group,
    expected_slots,
    live_part,
    slot_violations,
    table_violations,
)


def _make(offered: Any, call: Call) -> Any:
    """Return block tables with the requests of the case, after others that used all rows."""
    tables = offered(*(call[name] for name in CONSTRUCTOR_PARAMETERS))
    _run_earlier(tables, call)
    _fill(tables, call)
    return tables


def _fill(tables: Any, call: Call) -> None:
    """Give the tables the requests of the case."""
    facts = call.facts
    for row, slot in enumerate(facts.slots):
        blocks = [list(group.blocks[row]) for group in facts.groups]
        cuts = [len(held) // 2 for held in blocks]
        parts = [held[:cut] for held, cut in zip(blocks, cuts, strict=True)]
        _append(tables, slot, parts, overwrite=True)
        if row % 2:
            tables.apply_staged_writes()
        rest = [held[cut:] for held, cut in zip(blocks, cuts, strict=True)]
        _append(tables, slot, rest, overwrite=False)
    tables.apply_staged_writes()


def _run_earlier(tables: Any, call: Call) -> list[torch.Tensor]:
    """Run a step of earlier requests, which use all rows, columns and tokens of the buffers.

    Return each group's table. In a fresh row it is the same whether ids follow or replace it.
    """
    stale, columns = call.facts.stale, call["max_num_blocks_per_group"]
    slots, tokens = call["max_num_reqs"], call["max_num_batched_tokens"]
    for slot in range(slots):
        _append(tables, slot, [[stale] * width for width in columns], overwrite=slot % 2 > 0)
    tables.apply_staged_writes()
    device = call["device"]
    everyone = torch.arange(slots, dtype=torch.int32, device=device)
    gathered = [table.clone() for table in tables.gather_block_tables(everyone, slots)]
    starts = torch.full((slots + 1,), tokens, dtype=torch.int32, device=device)
    starts[0] = 0
    positions = torch.zeros(tokens, dtype=torch.int64, device=device)
    tables.compute_slot_mappings(everyone, starts, positions, tokens)
    return gathered


def _step(tables: Any, call: Call) -> tuple[Any, Any]:
    """Return the gathered tables and the slots of the step."""
    own = call["out"]
    pointers = None
    if call["out_ptrs"]:
        addresses = [table.data_ptr() for table in own]
        pointers = torch.tensor(addresses, dtype=torch.uint64, device=call["device"])
    gathered = tables.gather_block_tables(call["gathered"], call["num_reqs_padded"], own, pointers)
    slots = tables.compute_slot_mappings(
        call["idx_mapping"],
        call["query_start_loc"],
        call["positions"],
        call["num_tokens_padded"],
        call["slots"],
    )
    return gathered, slots


def _use(offered: Any, call: Call) -> Outputs:
    tables = offered(*(call[name] for name in CONSTRUCTOR_PARAMETERS))
    first = [table.clone() for table in tables.input_block_tables]
    earlier = _run_earlier(tables, call)
    _fill(tables, call)
    if call["appended"] is not None:
        _append_refused(tables, call)
    gathered, slots = _step(tables, call)
    outputs = _step_outputs(call, (gathered, slots))
    whole = tables.slot_mappings if call["slots"] is None else call["slots"]
    outputs["slot buffer"] = whole.clone()
    outputs["persistent"] = call["out"] is not None or [
        not view.numel() or view.data_ptr() == buffer.data_ptr()
        for view, buffer in zip(
            (*gathered, slots), (*tables.input_block_tables, tables.slot_mappings), strict=True
        )
    ]
    dummies = tables.get_dummy_block_tables(call["dummy_reqs"])
    outputs |= {f"dummy table {group}": table.clone() for group, table in enumerate(dummies)}
    outputs["dummy slots"] = tables.get_dummy_slot_mappings(call["dummy_tokens"]).clone()
    outputs["dummy slot buffer"] = tables.slot_mappings.clone()
    outputs |= {f"first table {group}": table for group, table in enumerate(first)}
    outputs |= {f"earlier table {group}": table for group, table in enumerate(earlier)}
    return outputs


def _step_outputs(call: Call, result: tuple[Any, Any]) -> Outputs:
    gathered, slots = result
    outputs: Outputs = {"groups": len(gathered)}
    for number, (table, group) in enumerate(zip(gathered, call.facts.groups, strict=True)):
        outputs[f"table {number}"] = live_part(table, group)
        outputs[f"whole table {number}"] = Free(table=table.tolist())
    return outputs | {"slots": slots.clone()}


def _append(tables: Any, slot: int, ids: list[list[int]], *, overwrite: bool) -> None:
    """Append block ids in lists that change at once, as those of a scheduler do."""
    tables.append_block_ids(slot, tuple(ids), overwrite)
    for group in ids:
        group.append(0)
        group[0] = 0


def _append_refused(tables: Any, call: Call) -> None:
    """Make the append that must raise, and record the groups whose rows it changed."""
    slots = call["max_num_reqs"]
    everyone = torch.arange(slots, dtype=torch.int32, device=call["device"])
    before = [table.clone() for table in tables.gather_block_tables(everyone, slots)]
    try:
        tables.append_block_ids(*call["appended"])
    finally:
        tables.apply_staged_writes()
        after = tables.gather_block_tables(everyone, slots)
        call.plain_written["tables"] += [
            number for number, table in enumerate(before) if not torch.equal(table, after[number])
        ]


def _invariants(_call: Call, outputs: Outputs) -> Iterator[Violation]:
    if outputs["persistent"] is not True and not all(outputs["persistent"]):
        yield Violation("persistent", "is not a view of the buffers that graphs have captured")
    for number in range(outputs["groups"]):
        if outputs[f"dummy table {number}"].any():
            yield Violation(f"dummy table {number}", "names a block")
        if outputs[f"first table {number}"].any():
            yield Violation(f"first table {number}", "names a block before the first step")
    if (outputs["dummy slot buffer"] != -1).any():
        yield Violation("dummy slot buffer", "gives a slot to a token of a dummy run")


def _consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check that rows name their request's blocks only, and each token's slot in every group."""
    facts = call.facts
    for number, group in enumerate(facts.groups):
        whole = outputs[f"whole table {number}"].values["table"]
        yield from table_violations(f"table {number}", whole, group)
        written = facts.written[number]
        for field in ("slots", "slot buffer"):
            slots = outputs[field][number]
            yield from slot_violations(field, slots, written, facts.rows, facts.positions)


def _diagnose(call: Call, place: Place, expected: Any, got: Any) -> str:
    """Name slots of the wrong group or of no token, and blocks of a dummy step."""
    if not isinstance(got, torch.Tensor) or got.shape != expected.shape:
        return ""
    facts, wrong = call.facts, expected != got
    if place.field.startswith("dummy table"):
        return "a dummy step names blocks"
    if place.field not in ("slots", "slot buffer") or got.dtype != expected.dtype:
        return ""
    if bool((expected[wrong] == -1).all()) and not wrong[:, : facts.tokens].any():
        return "a slot for an entry that must have none"
    groups = zip(facts.written, wrong, got, strict=True)
    sharded = [
        group.ranks == 1 < call["cp_size"] and _is_sharded(call, group, slots)
        for group, differs, slots in groups
        if differs.any()
    ]
    return "a replicated group taken for a sharded one" if all(sharded) else ""


def _is_sharded(call: Call, group: Group, slots: torch.Tensor) -> bool:
    """True if the slots are those that the group would have if the ranks shared it."""
    facts, shared = call.facts, replace(group, ranks=call["cp_size"])
    right = expected_slots(shared, facts.rows, facts.positions)
    return np.array_equal(slots[: facts.tokens].cpu().numpy(), right)


def _clocked(offered: Any, call: Call) -> Callable[[], Any]:
    """Return the gather and the slots of a step."""
    tables = _make(offered, call)
    return lambda: _step(tables, call)


block_tables = Operation(
    name=NAME,
    section="13",
    summary="blocks of request slots, and a step's block tables and slots",
    inputs=Inputs(
        params=TablesParams,
        problem=problem,
        unreal=unreal,
        cases=tables_cases,
        boundaries=tables_boundaries,
        from_batch=tables_of_batch,
        faults=FAULTS,
    ),
    call=ClassCall(
        clocked=Clocked(_clocked, _step_outputs),
        prepare=prepare,
        use=_use,
        outputs=lambda _call, result: result,
        methods=("append_block_ids", "gather_block_tables", "compute_slot_mappings"),
    ),
    contract=Contract(
        invariants=_invariants,
        consume=_consumed,
        diagnose=_diagnose,
        may_sync=lambda _: True,  # `use` reads results back between the steps
    ),
    bench=Bench(cases=lambda batch: [tables_case(batch)]),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (block_tables,)
