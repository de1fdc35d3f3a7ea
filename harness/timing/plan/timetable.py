"""The timetable: cases of operations and engine steps to time, with their workloads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Any, Final, NamedTuple

import msgspec

from attnproof.harness.cases.steps.workloads import TimedBatch, TraceSteps
from attnproof.harness.model.case import Batch, Case, Origin, Sourced
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.timing import Workload, WorkloadKind

REORDER = "reorder_batch_to_split_decodes_and_prefills"
STEP_OPERATIONS = (
    REORDER,
    "split_decodes_and_prefills",
    "build_slot_mapping",
    "split_attn_metadata",
    "make_local_attention_virtual_batches",
    "XFormersAttentionMetadataBuilder",
)
"""Operations of an engine step, in order."""
SERVED: Final = "served"
"""Kind of the workloads that only the timing process compares with the reference."""
STEP = "whole step"
"""Name used in place of an operation for whole engine steps."""


class TimedCase(NamedTuple):
    """One case of one operation."""

    operation: Operation
    workload: Workload
    case: Case

    @property
    def sourced(self) -> Sourced:
        """The case with its source, for the run that verifies it."""
        kind = self.workload.kind
        origin: Origin = kind if kind in ("trace", "recorded") else "boundary"
        return Sourced(self.case, origin, f"timed: {self.workload.name}")


class TimedStep(NamedTuple):
    """One engine step of a trace: a case of each operation."""

    trace: str
    workload: Workload
    cases: tuple[TimedCase, ...]


def why_never(operation: Operation) -> str:
    """Return why an operation is never timed, "" if it is timed on some workload."""
    return operation.bench.never


def timed_cases(
    operations: Sequence[Operation], workloads: Iterable[TimedBatch], *, real_sizes: bool = False
) -> list[TimedCase]:
    """Return every distinct case; `real_sizes` adds those that only a GPU computes in time."""
    cases: dict[str, TimedCase] = {}
    batches = list(workloads)
    for operation in operations:
        for timed in _cases_of(operation, batches, real_sizes) if not why_never(operation) else ():
            cases.setdefault(timed.case.id, timed)
    return list(cases.values())


def _cases_of(
    operation: Operation, batches: list[TimedBatch], real_sizes: bool
) -> Iterator[TimedCase]:
    choose = operation.bench.cases or operation.inputs.from_batch
    for workload, batch in batches:
        for case in choose(batch):
            yield TimedCase(operation, workload, case)
    named: list[tuple[str, WorkloadKind, Case]] = [
        (name, "model", case) for name, case in operation.bench.models()
    ]
    if real_sizes:
        large, served = operation.inputs.large(), operation.bench.served()
        named += [(f"{name}, real size", "model", case) for name, case in large]
        named += [(name, SERVED, case) for name, case in served]
    for name, kind, case in named:
        sizes = {"requests": case.num_requests, "tokens": case.num_tokens}
        yield TimedCase(operation, Workload(name=name, kind=kind, **sizes), case)


def timed_steps(operations: Sequence[Operation], trace: TraceSteps) -> Iterator[TimedStep]:
    """Yield the steps of a trace; operations after the reordering get the decodes first."""
    by_name = {operation.name: operation for operation in operations}
    for workload, batch in trace.steps:
        cases = []
        for name in STEP_OPERATIONS:
            if name in by_name:
                step_cases = _case_of_step(by_name[name], batch)
                cases += [TimedCase(by_name[name], workload, case) for case in step_cases]
        yield TimedStep(trace.name, workload, tuple(cases))


def _case_of_step(operation: Operation, batch: Batch) -> Iterable[Case]:
    if operation.name == REORDER:
        params = {"query_lens": list(batch.query_lens), "decode_threshold": 1}
        return [Case(REORDER, None, params)]
    return (operation.bench.cases or operation.inputs.from_batch)(decodes_first(batch))


def decodes_first(batch: Batch) -> Batch:
    """Return the batch with requests of one query token first, otherwise in their order."""
    rows = sorted(range(batch.num_requests), key=lambda row: batch.query_lens[row] > 1)
    fields = ["query_lens", "computed_lens", "blocks"]
    if batch.prompt_lens is not None:
        fields.append("prompt_lens")
    moved: dict[str, Any] = {
        name: tuple(getattr(batch, name)[row] for row in rows) for name in fields
    }
    if batch.logits_indices is not None:
        moved["logits_indices"] = _moved_tokens(batch, rows)
    return msgspec.structs.replace(batch, **moved)


def _moved_tokens(batch: Batch, rows: Sequence[int]) -> tuple[int, ...]:
    """Return where the sampled tokens are in a batch with its rows in another order."""
    starts = list(accumulate(batch.query_lens, initial=0))
    sampled = set(batch.logits_indices or ())
    tokens = chain.from_iterable(range(starts[row], starts[row + 1]) for row in rows)
    return tuple(place for place, token in enumerate(tokens) if token in sampled)
