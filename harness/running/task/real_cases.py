"""Cases that an engine may make, next to failing cases of no engine.

A mistake whose first failing case is no engine's would be advice only, although batches of an
engine may show it as well. So the nearest of them are run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.model.case import Batch, Case, Sourced
from attnproof.harness.running.case_check import problem_of
from attnproof.harness.running.task.examination import Examination

_MOST_OF_A_CAUSE = 5
"""Cases that are run for one root cause."""
_KEPT = (
    *("padded_requests", "padded_tokens", "spare_columns", "spare_slots", "causal"),
    *("encoder_seq_lens", "dcp_local_seq_lens", "subclassed", "later", "prompt_lens"),
)
"""Fields of a batch that do not depend on its lengths."""


def real_cases(examination: Examination) -> list[Sourced]:
    """Return the nearest cases of an engine for each root cause that only other cases show."""
    operation = examination.operation
    nearest: dict[str, Sourced] = {}
    for occurrence in examination.counts.advised.values():
        case = occurrence.smallest.case
        usual = msgspec.structs.replace(occurrence.failure, other_kind=None).kind
        if case.fault or usual not in examination.judged or not operation.why_unreal(case):
            continue
        made: list[Case] = []
        for one in _neighbours(case):
            if len(made) == _MOST_OF_A_CAUSE:
                break
            # First the problems: why_unreal reads parameters of the types that the case declares.
            if not problem_of(one) and not operation.why_unreal(one):
                made.append(one)
        for one in made:
            nearest.setdefault(one.id, Sourced(one, "boundary", "as an engine makes it"))
    return list(nearest.values())


def _neighbours(case: Case) -> Iterator[Case]:
    """Yield the case with a batch of an engine, alone and with one other argument changed."""
    if case.batch is not None:
        case = msgspec.structs.replace(case, batch=_real_batch(case.batch))
        yield case
    for name, value in sorted(case.params.items()):
        for other in _other_values(value):
            yield msgspec.structs.replace(case, params=case.params | {name: other})


def _real_batch(batch: Batch) -> Batch:
    """Return the batch with what no engine makes left out; a row without a token gets one."""
    lengths = [max(1, length) for length in batch.query_lens] or [1]
    computed = list(batch.computed_lens) or [0]
    plain: dict[str, Any] = {"strided": False, "dtype": "int32"}
    if lengths == list(batch.query_lens):
        made = msgspec.structs.replace(batch, **plain)
    else:
        fields = {name: getattr(batch, name) for name in _KEPT}
        made = make_batch(lengths, computed, batch.block_size, **fields, **plain)
    if made.logits_indices is not None:
        sampled = tuple(one for one in made.logits_indices if one < made.num_tokens)
        made = msgspec.structs.replace(made, logits_indices=sampled or None)
    return made


def _other_values(value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value - 1, 1)
    if value is not None:
        yield None
