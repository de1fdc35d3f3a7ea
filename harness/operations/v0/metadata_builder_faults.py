"""Faults of the V0 metadata builder's input (SPEC.md section 7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from attnproof.harness.cases.engines.v0 import InputBuilder, sequences, step_from_params
from attnproof.harness.model.case import Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.operations.shared.faults import wrong_type, wrong_value
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.reference.interface import MetadataError


def _group_fault(
    field: str,
    change: Callable[[Any], None],
    error: type[Exception] = MetadataError,
    applies: Callable[[Case], bool] = lambda _: True,
) -> Fault:
    """Return the fault of a malformed last group, which has decodes if there are any."""

    def malformed(builder: InputBuilder) -> InputBuilder:
        change(builder.inter_data_list[-1])
        return builder

    return Fault("input_builder", malformed, field, error, applies)


def _set(field: str, value: Any) -> Callable[[Any], None]:
    """Return a change that sets the field of the group's last sequence."""

    def change(group: Any) -> None:
        getattr(group, field)[-1] = value

    return change


def _ends_with_a_decode(case: Case) -> bool:
    all_sequences = sequences(batch_of(case), step_from_params(case.params))
    return not all_sequences[-1].is_prompt


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


def _queries(count: int) -> Callable[[Any], None]:
    """Return a change of the last sequence's queries; its lengths stay those of one token."""

    def change(group: Any) -> None:
        group.query_lens[-1] = count
        group.input_tokens[-1] = [7] * count

    return change


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


def _moved(step: int) -> Callable[[Any], None]:
    """Return a change of the length that the last sequence was scheduled with."""

    def change(group: Any) -> None:
        group.orig_seq_lens[-1] += step

    return change


def _one_more_sequence(group: Any) -> None:
    group.seq_ids = [*group.seq_ids, group.seq_ids[-1] + 1]


def _decode_fault(
    field: str, change: Callable[[Any], None], error: type[Exception] = MetadataError
) -> Fault:
    return _group_fault(field, change, error, _ends_with_a_decode)


def _numeric_flag(group: Any) -> None:
    group.is_prompt = int(group.is_prompt)


def _beyond_int32(lengths: list[int]) -> list[int]:
    """Return lengths whose sum does not fit int32; if there are several, each of them does."""
    return [(1 << 31) // len(lengths) + 1] * len(lengths)


def _one_beyond_int32(lengths: list[int]) -> list[int]:
    """Return lengths whose sum is 2^31."""
    return [(1 << 31) - len(lengths) + 1, *[1] * (len(lengths) - 1)]


def _graph_fault(field: str, rows: int, columns: int, dtype: type = np.int32) -> Fault:
    """Return the fault of graph block tables of another shape or type."""

    def malformed(builder: InputBuilder) -> InputBuilder:
        tables: np.ndarray = np.zeros((rows, columns), dtype=dtype)
        return replace(builder, runner=replace(builder.runner, graph_block_tables=tables))

    return Fault("input_builder", malformed, field, applies=_in_graph)


def _begins_with_a_prompt(builder: InputBuilder) -> InputBuilder:
    builder.inter_data_list[0].is_prompt = True
    return builder


def _builder_fault(field: str, value: Any) -> Fault:
    """Return the fault of a wrong value in the input builder."""
    return Fault("input_builder", lambda builder: replace(builder, **{field: value}), field)


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
    "decode of the step before": _decode_fault("orig_seq_lens", _moved(-1)),
    "decode of the step after": _decode_fault("orig_seq_lens", _moved(1)),
    "decode of two steps before": _decode_fault("orig_seq_lens", _moved(-2)),
    "decode of two queries": _decode_fault("query_lens", _queries(2)),
    "decode without a query": _decode_fault("query_lens", _queries(0)),
    "decode of a numpy length": _decode_fault(
        "query_lens", _set("query_lens", np.int64(1)), TypeError
    ),
    "one sequence too many": _decode_fault("input_tokens", _one_more_sequence),
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
    "block size of 0": _builder_fault("block_size", 0),
    "window of 0": _builder_fault("sliding_window", 0),
    "seq_lens of another batch": Fault("seq_lens", lambda lengths: [*lengths, 1]),
    "seq_lens that no offset holds": Fault("seq_lens", _beyond_int32),
    "seq_lens whose sum is 2^31": Fault("seq_lens", _one_beyond_int32),
    "query_lens of another batch": Fault("query_lens", lambda lengths: [*lengths, 1]),
    "query_lens of another step": Fault("query_lens", lambda lengths: [n + 1 for n in lengths]),
    "batch without tokens": Fault("query_lens", lambda lengths: [0] * len(lengths)),
    "seq_lens of another type": wrong_type("seq_lens"),
    "pad size below -1": wrong_value("cuda_graph_pad_size", -2),
    "pad size of another type": wrong_type("cuda_graph_pad_size"),
    "batch size of another graph": wrong_value("batch_size", 0, _in_graph),
    "batch larger than the graphs": _graph_fault("batch_size", 0, 9000),
    "block table longer than the graphs'": _graph_fault("block_tables", 900, 0),
    "float graph tables": _graph_fault("graph_block_tables", 900, 900, np.float32),
    "prompts in a graph": Fault(
        "input_builder", _begins_with_a_prompt, "cuda_graph_pad_size", applies=_in_graph
    ),
}
