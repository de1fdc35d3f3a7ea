"""Operation of SPEC.md section 17: states that prefills export in the middle of their query.

Bug classes: a checkpoint whose hash needs tokens that the sequence lacks, a state in the block
of the row's first or last token, one where the manager has no block for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from hypothesis import strategies as st
from msgspec import Meta

from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.arguments import Values
from attnproof.harness.operations.derived.derive import Example, Step, derive_built_in, one_of
from attnproof.harness.operations.derived.params import Parameter
from attnproof.harness.operations.shared.faults import wrong_type
from attnproof.harness.operations.shared.params import BlockSize, Tokens
from attnproof.reference import compute_mamba_prefill_checkpoints as reference

_Blocks = Annotated[int, Meta(ge=1, le=64)]
_Row = Annotated[list[Tokens], Meta(min_length=2, max_length=2)]
"""Query and computed tokens."""
_Rows = Annotated[list[_Row], Meta(max_length=2**16)]
_ROW = st.tuples(st.integers(0, 70), st.integers(0, 70)).map(list)
_MIXED = [[21, 4], [20, 0], [5, 16], [1, 30]]


def _examples() -> Iterator[Example]:
    yield "prefills, a short chunk and a decode", None, {}
    ends = {"rows": [[query, 8] for query in range(12, 30)]}
    for drop in (False, True):
        for lookahead in (0, 1, 2, 4, 5):
            sizes = {"num_hash_lookahead_tokens": lookahead, "drop_eagle_block": drop}
            for alignment in (1, 3):
                name = f"ends around blocks: lookahead {lookahead}, drop {drop}, {alignment}"
                yield name, None, ends | sizes | {"checkpoint_alignment": alignment}
    starts = {"rows": [[40, computed] for computed in range(12)], "aligned": False}
    yield "starts around blocks", None, starts


def _steps(batch: Batch) -> Iterator[Step]:
    rows = zip(batch.query_lens, batch.computed_lens, strict=True)
    yield batch, {"rows": [list(row) for row in rows]}


def _sequences(values: Values) -> list[int]:
    """Return the lengths of the rows, which begin at a hash block if `aligned`."""
    size = values["hash_block_size"] if values.params["aligned"] else 1
    return [query + computed // size * size for query, computed in values.params["rows"]]


def _checkpoints(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Require that hits reach each checkpoint, and that none behind it could be hit."""
    given, answered = (call["seq_lens"], call["query_lens"]), (outputs["offsets"], outputs["cols"])
    rows = zip(*given, *answered, strict=True)
    hit, size = call["cache_hit_alignment_tokens"], call["mamba_block_size"]
    for length, query, offset, col in rows:
        if (offset == 0) != (col == -1):
            yield Violation("cols", "has a column without a checkpoint, or none with one")
        if offset == 0 or col == -1:
            continue
        behind = query - offset
        needed = hit if call["drop_eagle_block"] else max(1, call["num_hash_lookahead_tokens"])
        if (length - behind) % hit or not needed <= behind < needed + hit:
            yield Violation("offsets", "is not where the longest hit of the sequence ends")
        if not length - size <= (col + 1) * size < length:
            yield Violation("cols", "is not the column before that of the last token")


def _has_rows(case: Case) -> bool:
    return bool(case.params["rows"])


compute_mamba_prefill_checkpoints = derive_built_in(
    reference,
    section="17",
    summary="where each prefill exports a state that a later request may hit",
    values={
        "query_lens": lambda values: [query for query, _ in values.params["rows"]],
        "seq_lens": _sequences,
        "hash_block_size": lambda values: values.params["hash_size"],
        "mamba_block_size": lambda values: values.params["hash_size"] * values.params["blocks"],
        "cache_hit_alignment_tokens": lambda values: (
            values.params["hash_size"] * values.params["hit_blocks"]
        ),
    },
    parameters={
        "rows": Parameter(_Rows, (_MIXED, []), st.lists(_ROW, max_size=6)),
        "hash_size": one_of(BlockSize, 4, 1, 2, 16),
        "blocks": one_of(_Blocks, 2, 1, 4),
        "hit_blocks": one_of(_Blocks, 1, 2, 3),
        "aligned": one_of(bool, True, False),
    },
    examples=_examples,
    steps=_steps,
    faults={
        "a row less": Fault("query_lens", lambda rows: rows[:-1], applies=_has_rows),
        "negative queries": Fault("query_lens", lambda q: [-1 for _ in q], applies=_has_rows),
        "queries longer than their sequences": Fault(
            "query_lens",
            lambda _, lengths: [length + 1 for length in lengths],
            applies=_has_rows,
            reads=("seq_lens",),
        ),
        "lengths of another type": wrong_type("seq_lens"),
    },
    invariants=_checkpoints,
)

OPERATIONS = (compute_mamba_prefill_checkpoints,)
