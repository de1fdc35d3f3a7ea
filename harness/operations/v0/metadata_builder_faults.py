"""Ways to misuse the V0 metadata builder (SPEC.md section 7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnproof.harness.cases.engines.v0 import sequences, step_from_params
from attnproof.harness.model.case import Case
from attnproof.harness.model.operation import Call, Fault
from attnproof.harness.operations.shared.metadata import batch_of, wrong_type, wrong_value
from attnproof.reference.interface import MetadataError


def _group_fault(
    field: str,
    change: Callable[[Any], None],
    error: type[Exception] = MetadataError,
    applies: Callable[[Case], bool] = lambda _: True,
) -> Fault:
    """The last sequence group spoilt: decodes if there are any."""

    def spoil(call: Call) -> None:
        change(call.args[0].inter_data_list[-1])

    return Fault(field=field, spoil=spoil, error=error, applies=applies)


def _set(field: str, value: Any) -> Callable[[Any], None]:
    """The field of the group's last sequence becomes `value`."""

    def change(group: Any) -> None:
        getattr(group, field)[-1] = value

    return change


def _ends_with_a_decode(case: Case) -> bool:
    found = sequences(batch_of(case), step_from_params(case.params))
    return not found[-1].is_prompt


def _reads_all_blocks(case: Case) -> bool:
    return _ends_with_a_decode(case) and not step_from_params(case.params).window


def _has_tables(case: Case) -> bool:
    return not step_from_params(case.params).profile


def _in_graph(case: Case) -> bool:
    return step_from_params(case.params).pad_size != -1


def _longer_query(group: Any) -> None:
    group.query_lens[-1] += 1


def _two_tokens(group: Any) -> None:
    group.query_lens[-1] = 2
    group.input_tokens[-1] = [7, 7]
    group.orig_seq_lens[-1] += 1


def _short_table(group: Any) -> None:
    group.block_tables[group.seq_ids[-1]] = []


def _float_block(group: Any) -> None:
    group.block_tables[group.seq_ids[-1]][0] = 2.0


def _negative_block(group: Any) -> None:
    group.block_tables[group.seq_ids[-1]][0] = -1


def _no_table(group: Any) -> None:
    group.block_tables = {group.seq_ids[-1] + 1: [3]}


def _listed_tables(group: Any) -> None:
    group.block_tables = [group.block_tables[seq_id] for seq_id in group.seq_ids]
    group.seq_ids = list(range(len(group.seq_ids)))


def _numeric_flag(group: Any) -> None:
    group.is_prompt = int(group.is_prompt)


def _endless(call: Call) -> None:
    """Each length fits int32, but for a single one; their sum does not."""
    count = len(call.args[1])
    call.args[1] = [(1 << 31) // count + 1] * count


def _narrow_graph(call: Call) -> None:
    call.args[0].runner.graph_block_tables = np.zeros((900, 0), dtype=np.int32)


def _low_graph(call: Call) -> None:
    call.args[0].runner.graph_block_tables = np.zeros((0, 9000), dtype=np.int32)


def _float_graph(call: Call) -> None:
    call.args[0].runner.graph_block_tables = np.zeros((900, 900), dtype=np.float32)


def _longer_lengths(position: int) -> Callable[[Call], None]:
    def spoil(call: Call) -> None:
        call.args[position] = [*call.args[position], 1]

    return spoil


def _of_another_batch(call: Call) -> None:
    call.args[2] = [length + 1 for length in call.args[2]]


def _fault(
    field: str, spoil: Callable[[Call], None], applies: Callable[[Case], bool] = lambda _: True
) -> Fault:
    return Fault(field=field, spoil=spoil, error=MetadataError, applies=applies)


def _prompts_in_graph(call: Call) -> None:
    rows = len(call.args[2])
    call.args[1] = call.args[1][:rows]
    call.args[3:] = [0, rows]


def _starts_with_a_prompt(case: Case) -> bool:
    found = sequences(batch_of(case), step_from_params(case.params))
    return found[0].is_prompt


FAULTS = {
    "one length missing": _group_fault("context_lens", lambda group: group.context_lens.pop()),
    "one sequence's tokens missing": _group_fault(
        "input_tokens", lambda group: group.input_tokens.pop()
    ),
    "float length": _group_fault("seq_lens", _set("seq_lens", 2.0), TypeError),
    "negative context": _group_fault("context_lens", _set("context_lens", -1)),
    "negative window": _group_fault(
        "curr_sliding_window_blocks", _set("curr_sliding_window_blocks", -1)
    ),
    "sequence of another step": _group_fault("orig_seq_lens", _set("orig_seq_lens", 90_000)),
    "query longer than its tokens": _group_fault(
        "input_tokens", _longer_query, applies=lambda case: not _ends_with_a_decode(case)
    ),
    "decode of two tokens": _group_fault("query_lens", _two_tokens, applies=_ends_with_a_decode),
    "position beyond the block table (K14)": _group_fault(
        "block_table", _short_table, applies=_ends_with_a_decode
    ),
    "block id of another type": _group_fault(
        "block_tables", _float_block, TypeError, _reads_all_blocks
    ),
    "negative block id": _group_fault("block_tables", _negative_block, applies=_reads_all_blocks),
    "sequence without a block table": _group_fault("block_tables", _no_table, applies=_has_tables),
    "tables of another type": _group_fault(
        "block_tables", lambda group: setattr(group, "block_tables", [3]), TypeError
    ),
    "tables in a list": _group_fault("block_tables", _listed_tables, TypeError, _has_tables),
    "prompt or not as a number": _group_fault("is_prompt", _numeric_flag, TypeError),
    "prefix-cache hit without tables": _group_fault(
        "block_tables",
        lambda group: setattr(group, "prefix_cache_hit", True),
        applies=lambda case: not _has_tables(case),
    ),
    "block size of 0": _fault("block_size", lambda call: setattr(call.args[0], "block_size", 0)),
    "window of 0": _fault(
        "sliding_window", lambda call: setattr(call.args[0], "sliding_window", 0)
    ),
    "seq_lens of another batch": _fault("seq_lens", _longer_lengths(1)),
    "seq_lens that no offset holds": _fault("seq_lens", _endless),
    "query_lens of another batch": _fault("query_lens", _longer_lengths(2)),
    "query_lens of another step": _fault("query_lens", _of_another_batch),
    "batch without tokens": _fault(
        "query_lens", lambda call: call.args.__setitem__(2, [0] * len(call.args[2]))
    ),
    "seq_lens of another type": wrong_type(1, "seq_lens"),
    "pad size below -1": wrong_value(3, "cuda_graph_pad_size", -2),
    "pad size of another type": wrong_type(3, "cuda_graph_pad_size"),
    "batch size of another graph": wrong_value(4, "batch_size", 0, _in_graph),
    "batch larger than the graphs": _fault("batch_size", _low_graph, _in_graph),
    "block table longer than the graphs'": _fault("block_tables", _narrow_graph, _in_graph),
    "float graph tables": _fault("graph_block_tables", _float_graph, _in_graph),
    "prompts in a graph": _fault("cuda_graph_pad_size", _prompts_in_graph, _starts_with_a_prompt),
}
