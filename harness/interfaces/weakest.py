"""The weakest contract among those of the interfaces that a candidate's function may have.

Two contracts differ by interface: the regions of a reordered batch, by the progress of requests
that the engine knows, and the split, by the arguments of later engines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.interfaces.functions import SPLIT, SPLIT_OPTIONS, takes
from attnproof.harness.model.call import Free
from attnproof.harness.model.case import Case
from attnproof.harness.model.place import Place
from attnproof.harness.operations.batch.reorder import PROGRESS_FIELDS, REORDER
from attnproof.harness.operations.xformers.builder import NAME as BUILDER
from attnproof.harness.operations.xformers.builder import PROGRESS

_FORMS = ("vllm-0.10", "vllm-0.11", "vllm-0.32")
"""Interfaces by the number of `PROGRESS_FIELDS` that decide on the regions."""
_TRIALS = {
    REORDER: Case(
        REORDER,
        None,
        {
            "query_lens": [9, 1, 9, 1, 9, 1],
            "decode_threshold": 1,
            "computed_lens": [0, 5, 4, 5, 0, 3],
            "prompt_lens": [9, 5, 20, 9, 12, 3],
        },
    ),
    BUILDER: Case(
        BUILDER,
        make_batch([1, 1, 1, 9, 9, 9], [5, 3, 7, 4, 0, 0], 4),
        {"via": 0, "prefix": 0, "fast": False, PROGRESS: 2},
    ),
}
"""Batches out of order by all regions: what a function reads of them shows its form.

No signature shows it.
"""


def earlier_form(operation: str, function: Any) -> str:
    """Return the interface whose arguments a function takes, "" if those of all."""
    if operation != SPLIT or not callable(function):
        return ""
    unknown = [
        form for form, name in zip(_FORMS, SPLIT_OPTIONS, strict=False) if not takes(function, name)
    ]
    return next(iter(unknown), "")


def weakest_interface(
    operation: str, form: str, outputs_of: Callable[[Case], Mapping[Place, Any]]
) -> str:
    """Return the interface by whose contract a function is judged, "" if all have the same.

    `form` is its `earlier_form`. `outputs_of` calls the function once, and returns nothing if the
    call does not end well.
    """
    trial = _TRIALS.get(operation)
    order = outputs_of(trial).get(Place("order")) if trial else None
    if not isinstance(order, Free):
        return form
    known = [name in order.values["read"] for name in PROGRESS_FIELDS]
    return _FORMS[max((number for number, reads in enumerate(known, 1) if reads), default=0)]
