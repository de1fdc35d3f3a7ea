"""Sequence of SPEC.md section 16: a KV-cache manager through the steps of an engine.

Bug classes: a prefix whose blocks hold other tokens, a block that goes while a request still
reads it, hits that one group has and another lacks, blocks that are never freed. Each needs
several requests.
"""

from __future__ import annotations

from typing import Any

from attnproof.harness.model.call import Call
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.operations.kv_manager.boundaries import boundaries, from_batch
from attnproof.harness.operations.kv_manager.hits import BLOCKS, HITS
from attnproof.harness.operations.kv_manager.ledger import FITS, FREE, NULLS, RESETS
from attnproof.harness.operations.kv_manager.lines import observe, script, steps_consumed
from attnproof.harness.operations.kv_manager.machine import ManagerMachine
from attnproof.harness.operations.kv_manager.steps import NAME, PARAMS
from attnproof.harness.operations.shared.sequence import (
    SEQUENCE_NOT_TIMED,
    SequenceCall,
    sequence_inputs,
)


def _diagnose(_call: Call, place: Place, expected: Any, got: Any) -> str:
    """Return what is wrong with an answer; an exception has no other answer beside it."""
    if place.field not in _TEXTS or None in (expected, got):
        return ""
    return _TEXTS[place.field][_number(got) > _number(expected)]


_TEXTS = {
    "hits": HITS,
    "nulls": NULLS,
    "fits": FITS,
    "blocks": (BLOCKS, BLOCKS),
    "reset": RESETS,
    "free": FREE,
}
"""Diagnoses of an answer that is too small, and of one that is too large."""


def _number(answer: Any) -> int:
    """Return an answer as a number, the sum of one number for each group of each request."""
    return sum(map(sum, answer)) if isinstance(answer, list) else int(answer)


kv_manager = Operation(
    name=NAME,
    section="16",
    summary="blocks and cached prefixes through the steps of an engine",
    inputs=sequence_inputs(
        params=PARAMS,
        machine=ManagerMachine,
        boundaries=boundaries,
        from_batch=from_batch,
    ),
    call=SequenceCall(parts=("KVCacheManager",), write=script, observe=observe, poisons=False),
    contract=Contract(diagnose=_diagnose, consume=steps_consumed, causes_first=True),
    bench=Bench(never=SEQUENCE_NOT_TIMED),
    built_in=BuiltIn(shared="Python objects of a request: there is nothing to make faster"),
)

OPERATIONS = (kv_manager,)
